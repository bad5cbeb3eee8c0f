"""The frozen roles: a prompt in, one call, a typed result out.

Every role is a frozen strategy with one coroutine. `op` names the operation
uniquely within a run and `seed` is the run's seed; both together decide the
seed of every call, so a restart asks the same again. A role raises `ChatError`
when no usable reply came; only the judge turns a failed vote into part of its
verdict.
"""
