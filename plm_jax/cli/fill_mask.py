"""The command `fill-mask`."""
import math

import tyro

from plm_jax.api import models
from plm_jax.cli import inputs
from plm_jax.cli.options import command
from plm_jax.errors import ConfigError


@command(top='[1, 16777216]')
def fill_mask_command(
    run: tyro.conf.Positional[str], prompts: tyro.conf.Positional[tuple[str, ...]], top: int = 5
) -> None:
  """Prints the most likely tokens for every [MASK]; a GLM fills [sMASK] and [gMASK], too.

  Args:
    run: run folder, transformers checkpoint, original TensorFlow checkpoint, or ORG/NAME of the
      Hugging Face hub
    prompts: sentences with one or more [MASK], whatever the mask token of the model is; - reads one
      sentence per line from standard input
    top: number of candidates to print per [MASK]
  """
  prompts = inputs.read_prompts(prompts)
  if not prompts:
    raise ConfigError('there is no prompt: give a sentence with a [MASK] in place of the word to '
                      'predict')
  for prompt, found in zip(prompts, models.fill_mask(run, prompts, top), strict=True):
    print(prompt)
    for number, candidates in enumerate(found, 1):
      if len(found) > 1 and len(candidates) > 1:
        print(f'  [MASK] {number}')
      for token, probability in candidates:
        share = '' if math.isnan(probability) else f'{probability:7.2%}  '
        print(f'  {share}{token}')
