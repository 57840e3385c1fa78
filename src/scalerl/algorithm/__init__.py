"""The design space as pure functions: losses, advantages, weights, the effective batch."""
