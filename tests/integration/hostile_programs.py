"""Programs that try what no program may, for the tests of the sandbox, which expect the answer 6.

Runs are bounded in time, memory, output, files and processes, and what multiplies or fills a disk
is bounded in count too, so that a sandbox that fails its tests harms little.
"""

TIMEOUTS = {
    "endless loop": "while True: pass",
    "a loop that catches everything": "while True:\n try:\n  while True: pass\n"
    " except BaseException: pass",
    "deaf to signals": "import signal\nfor s in range(1,65):\n"
    " try: signal.signal(s,signal.SIG_IGN)\n except (OSError,ValueError): pass\nwhile True: pass",
    "asleep": "import time\ntime.sleep(60)",
    "waiting for input that never comes": "import socket\na,b=socket.socketpair()\na.recv(1)",
    "a thread that does not end": "import threading,time\n"
    "threading.Thread(target=time.sleep,args=(60,)).start()\nprint(6)",
    "an exit handler that does not end": "import atexit,time\natexit.register(time.sleep,60)\n"
    "print(6)",
    "inside C code": "import sys\nsys.set_int_max_str_digits(0)\nx=str(10**(10**7))",
    "a regular expression": "import re\nre.match('(a+)+$','a'*40+'b')",
    "a destructor that does not end": "import time\nclass A:\n"
    " def __del__(self,s=time.sleep): s(60)\na=A()\nprint(6)",
    "output closed, then asleep": "import os,time\nprint(6,flush=True)\nfor f in range(64):\n"
    " try: os.close(f)\n except OSError: pass\ntime.sleep(60)",
}

RUNAWAYS = {  # out of time or out of memory, whichever comes first
    "many small objects": "l=[]\nfor i in range(10**8): l.append([i])\nprint(6)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n+1)\nf(0)",
    "deep recursion in C": "import sys\nsys.setrecursionlimit(10**9)\nl=[]\n"
    "for _ in range(10**6): l=[l]\nrepr(l)",
    "a large power": "import sys\nsys.set_int_max_str_digits(0)\nprint(9**9**9)",
}

WRONG = {
    "64 GiB at once": "x=bytearray(1<<36)\nprint(6)",
    "a list that doubles": "l=[0]\nfor _ in range(40): l+=l\nprint(6)",
    "a mapping of memory": "import mmap\nm=mmap.mmap(-1,1<<33)\nprint(6)",
    "memory without a file name": "import os\nos.memfd_create('x')\nprint(6)",
    "shared memory": "from multiprocessing import shared_memory\n"
    "shared_memory.SharedMemory(create=True,size=1<<33)\nprint(6)",
    "a crash in C": "import ctypes\nctypes.string_at(0)",
    "endless output": "while True: print('1234567890')",
    "a gigabyte of output": "import sys\nfor _ in range(1<<10): sys.stdout.write('6'*(1<<20))",
    "one huge line": "print('6'*(200<<20),end='')",
    "endless noise": "import sys\nfor _ in range(10**9): sys.stderr.write('x'*65536)",
    "output with the answer first": "print(6)\nfor _ in range(10**9): print(' '*10**5)",
    "leaving at once": "import os\nos._exit(0)",
    "input closed, then read": "import sys\nsys.stdin.close()\nprint(int(input())*2)",
    "output closed": "import os\nos.close(1)\nprint(6)",
    "all descriptors closed": "import os\nos.closerange(0,4096)\nprint(6)",
    "the verdict's descriptor": "import os\nfor f in range(3,4096):\n"
    " for t in (b'correct\\n',b'6\\n',"
    'b\'{"status":0,"killed":false}\\n\'):\n  try: os.write(f,t)\n  except OSError: pass',
    "answer on stderr": "import sys\nprint(6,file=sys.stderr)",
    "the checker's code patched": "import sys,builtins,json\n"
    "for n,m in list(sys.modules.items()):\n if 'scalerl' in n:\n  for k in list(vars(m)):\n"
    "   if callable(vars(m)[k]): setattr(m,k,lambda *a,**k: True)\n"
    "json.loads=json.dumps=lambda *a,**k: 'correct'",
    "the checker's frames searched": "import sys\nf=sys._getframe()\nwhile f:\n"
    " for v in list(f.f_locals.values()):\n  if 'stdout' in repr(v)[:9999]: print(6)\n f=f.f_back",
    "memory searched for the answer": "import gc\nfor o in gc.get_objects():\n"
    " if isinstance(o,dict) and o.get('stdout')=='6\\n': print(6)",
}

# Each of these prints 6 only if it could do what no program may.
ESCAPES = {
    "reading the user's file": "print(open({secret!r}).read())",
    "reading it by a link": "import os\nos.symlink({secret!r},'l')\nprint(open('l').read())",
    "reading it by a hard link": "import os\nos.link({secret!r},'l')\nprint(open('l').read())",
    "reading it by a descriptor of its folder": "import os\nd=os.open({folder!r},os.O_PATH)\n"
    "print(open(os.open('secret',os.O_RDONLY,dir_fd=d)).read())",
    "listing its folder": "import os\nprint(6 if 'secret' in os.listdir({folder!r}) else 0)",
    "reading it through /proc": "print(open('/proc/1/root'+{secret!r}).read())",
    "reading it through /proc/self/cwd": "print(open('/proc/self/root'+{secret!r}).read())",
    "passwords": "print(6 if open('/etc/passwd').read() else 0)",
    "home": "import os\nfor h in ('/root','/home'):\n"
    " if os.path.isdir(h) and os.listdir(h): print(6)",
    "writing the user's file": "open({secret!r},'w').write('gone')\nprint(6)",
    "appending to it": "import os\n"
    "os.write(os.open({secret!r},os.O_WRONLY|os.O_APPEND),b'x')\nprint(6)",
    "cutting it": "import os\nos.truncate({secret!r},0)\nprint(6)",
    "removing it": "import os\nos.unlink({secret!r})\nprint(6)",
    "renaming it": "import os\nos.rename({secret!r},{secret!r}+'.old')\nprint(6)",
    "its mode": "import os\nos.chmod({secret!r},0o777)\nprint(6)",
    "its times": "import os\nos.utime({secret!r},(0,0))\nprint(6)",
    "a file beside it": "open({folder!r}+'/new','w')\nprint(6)",
    "a folder": "import os\nos.mkdir('/new')\nprint(6)",
    "a file in the library": "import os\nopen(os.__file__+'x','w')\nprint(6)",
    "the standard library": "import os\nopen(os.__file__,'a')\nprint(6)",
    "/dev/shm": "open('/dev/shm/scalerl-hostile','w')\nprint(6)",
    "devices": "import os\nos.mknod('d',0o60666,os.makedev(8,0))\nopen('d','rb')\nprint(6)",
    "the disk": "import glob\nfor d in glob.glob('/dev/[svn][dv]*'): open(d,'rb')\n"
    "print(open('/dev/mem','rb') and 6)",
    "kernel settings": "open('/proc/sys/kernel/core_pattern','w').write('x')\nprint(6)",
    "the environment": "import os\nprint(6 if any('SECRET' in k for k in os.environ) else 0)",
    "the parent's environment": "import glob\nfor p in glob.glob('/proc/[0-9]*/environ'):\n"
    " try:\n  if 'SCALERL_SECRET' in open(p).read(): print(6)\n except OSError: pass",
    "the parent's memory": "open('/proc/{pid}/mem','rb')\nprint(6)",
    "the parent's descriptors": "import glob\nfor p in glob.glob('/proc/{pid}/fd/*'):\n"
    " try:\n  open(p,'rb')\n  print(6)\n except OSError: pass",
    "command lines of other processes": "import glob\nfor p in glob.glob('/proc/[0-9]*/cmdline'):\n"
    " try:\n  if 'pytest' in open(p).read(): print(6)\n except OSError: pass",
    "the network": "import socket\n"
    "socket.create_connection(('127.0.0.1',{port}),timeout=0.5)\nprint(6)",
    "datagrams": "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
    "s.sendto(b'x',('127.0.0.1',{port}))\nprint(6)",
    "a socket of the machine": "import socket\ns=socket.socket(socket.AF_UNIX)\n"
    "s.connect({folder!r}+'/door')\nprint(6)",
    "an abstract socket": "import socket\ns=socket.socket(socket.AF_UNIX)\n"
    "s.connect('\\0scalerl-hostile-{pid}')\nprint(6)",
    "listening": "import socket\ns=socket.socket()\ns.bind(('127.0.0.1',0))\ns.listen()\nprint(6)",
    "a signal to the parent": "import os\nos.kill({pid},0)\nprint(6)",
    "a signal to all": "import os\nos.kill(-1,18)\nprint(6 if os.getpid()!=1 else 0)",
    "signals by a descriptor": "import fcntl,os,socket\na,b=socket.socketpair()\n"
    "fcntl.fcntl(a,fcntl.F_SETOWN,{pid})\nprint(6)",
    "tracing the parent": "import ctypes\nif ctypes.CDLL(None).ptrace(16,{pid},0,0)==0: print(6)",
    "the parent's limits": "import resource\nresource.prlimit({pid},resource.RLIMIT_NOFILE,(0,0))\n"
    "print(6)",
    "higher limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS,(-1,-1))\nprint(6)",
    "another user": "import os\nos.setuid(0)\nprint(6)",
    "a user namespace": "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000)==0: print(6)",
    "a mount": "import ctypes\nif ctypes.CDLL(None).mount(b'x',b'.',b'tmpfs',0,0)==0: print(6)",
    "leaving the root": "import os\nos.chroot('.')\nprint(6)",
    "a kernel program": "import ctypes\nif ctypes.CDLL(None).syscall(321,0,0,0)!=-1: print(6)",
    "an I/O ring": "import ctypes\nb=ctypes.create_string_buffer(120)\n"
    "if ctypes.CDLL(None).syscall(425,4,b)!=-1: print(6)",
    "a new process": "import os\nif os.fork(): print(6)",
    "a new process by clone": "import ctypes\nr=ctypes.CDLL(None).syscall(56,17,0,0,0,0)\n"
    "if r>0: print(6)",
    "another program": "import subprocess,sys\nsubprocess.run([sys.executable,'-c','print(6)'])",
    "a shell": "import os\nos.system('echo 6')",
    "another architecture's calls": "import ctypes\n"
    "if ctypes.CDLL(None).syscall(0x40000000+39)!=-1: print(6)",
}

CONTROLS = (
    "reading the user's file",
    "listing its folder",
    "the network",
    "a socket of the machine",
    "datagrams",
    "an abstract socket",
    "a new process by clone",
)

FILES = {
    "a file of 10 GB": "with open('big','wb') as f:\n"
    " for _ in range(10_000): f.write(bytes(10**6))\nprint(6)",
    "a file of holes": "import os\nos.truncate(os.open('h',os.O_CREAT|os.O_RDWR),10**10)\nprint(6)",
    "many files": "for i in range(10_000):\n with open(f'f{i}','wb') as f: f.write(bytes(10**4))\n"
    "print(6)",
    "empty files": "for i in range(100_000): open(f'f{i}','w').close()\nprint(6)",
    "folders within folders": "import os\nfor i in range(100_000):\n os.mkdir('d')\n"
    " os.chdir('d')\nprint(6)",
}

PROCESSES = {
    "fork bomb": "import os\nfor _ in range(1000):\n try: os.fork()\n except OSError: pass\n"
    "while True: pass",
    "a child that sleeps": "import subprocess,sys,time\n"
    "subprocess.Popen([sys.executable,'-c','import time; time.sleep(600)'])\ntime.sleep(600)",
    "a daemon": "import os,time\nif os.fork()==0:\n os.setsid()\n if os.fork(): os._exit(0)\n"
    " time.sleep(600)\ntime.sleep(600)",
    "children deaf to signals": "import os,signal,time\nfor _ in range(8):\n if os.fork()==0:\n"
    "  for s in (1,2,3,15): signal.signal(s,signal.SIG_IGN)\n  time.sleep(600)\ntime.sleep(600)",
    "zombies": "import os,time\nfor _ in range(20):\n if os.fork()==0: os._exit(0)\n"
    "time.sleep(600)",
}
