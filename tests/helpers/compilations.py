"""Counts what JAX compiles in this process."""
from collections import Counter
from typing import Any

from jax import monitoring

COMPILATION = '/jax/core/compile/'
compiled: Counter[str] = Counter()


@monitoring.register_event_duration_secs_listener
def count(event: str, duration_secs: float, **kwargs: Any) -> None:
  del duration_secs
  name = f'{event.removeprefix(COMPILATION)} of {kwargs.get("fun_name")}'
  # To read a checkpoint, the shapes of its parameters are inferred, for which nothing is compiled.
  if event.startswith(COMPILATION) and name != 'jaxpr_trace_duration of init':
    compiled[name] += 1
