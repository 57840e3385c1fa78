"""The two ways a command ends badly, so that the command line can tell them apart."""


class InputError(Exception):
    """The user's input is wrong. The message names file, line or key, and what to do. Exit 2."""


class RunError(Exception):
    """A run that was started could not go on. The message says what failed and why. Exit 1."""
