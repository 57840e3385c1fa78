class State:
    pass


def state_cls(cls):
    return State
