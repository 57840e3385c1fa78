"""A reward that completions of a random model get about half of the time."""


def even(completion, prompt):
    return float(sum(map(ord, completion)) % 2 == 0)
