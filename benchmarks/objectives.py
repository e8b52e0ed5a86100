"""Masked diffusion next to masked and causal language modeling: one network, the same text and the same time.

    python -m benchmarks.objectives --text=wiki.txt.xz --data=DIR --output=runs/objectives

DIR has cola_ and sst2_train.tsv.gz and _dev.tsv.gz, and BLiMP as blimp_each5th.jsonl.gz. The network has RoPE,
pre-norm, gated MLPs, packed sequences, and no dropout. Arms:

    mlm        masked language modeling, 30% of the tokens masked
    diffusion  masked diffusion (Sahoo et al. 2024)
    rare       masked diffusion with frequency-informed masking (Kosmopoulou et al. 2025)
    clm        causal language modeling: the same network as a decoder

Learning rates are chosen for mlm, diffusion and clm; rare has that of diffusion. Masked diffusion learns little more
than word frequencies from a short run, so its learning rate needs long ones (--brief=2): with 2 layers of 192, 2e-3 is
better than 1e-3 after 532 steps, and much worse after 2,500. The held-out loss is in nats per token. For clm it is the
negative log-likelihood, and for masked diffusion an upper bound of it. Minimal pairs are scored by likelihood for clm,
and by pseudo-likelihood for the others.
"""
from collections.abc import Mapping
import dataclasses
from typing import Any

from benchmarks import comparison, equal_time, modern
from benchmarks.comparison import Bench
from benchmarks.equal_time import Arm, Setting
from plm_jax import validation
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.config.run import PretrainRun
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.masked_diffusion import MaskedDiffusion


def arms(setting: Setting) -> Mapping[str, Arm]:
  """Return the arms by name."""
  del setting
  return {
      'mlm': Arm('masked LM, 30% masks', {}, 'mlm'),
      'diffusion': Arm('masked diffusion', {'objective': MaskedDiffusion()}, 'diffusion'),
      'rare': Arm('masked diffusion, frequency-informed', {
          'objective': MaskedDiffusion(frequency_power=0.02)}, 'diffusion'),
      'clm': Arm('causal LM', {'family': 'llama', 'objective': CausalLM()}, 'clm')}


def config(setting: Setting, arm: str) -> PretrainRun:
  """Return the run of an arm."""
  changes = {
      **modern.arms(setting)['all'].changes, 'model.block.dropout': 0.0, 'model.block.attention.dropout': 0.0}
  run = validation.with_paths(equal_time.encoder(setting), changes)
  if arm == 'clm':
    model = run.model
    stack = dataclasses.replace(model.stack, first_norm=True)
    run = dataclasses.replace(run, model=DecoderConfig(
        model.vocab, model.block, stack, model.max_length, absolute='none', types=0, tied=True))
  return validation.with_paths(run, {'name': arm, **arms(setting)[arm].changes})


BENCH = Bench(
    'benchmarks.objectives', __doc__ or '', Setting, arms, config, {'15% masks': {}}, ('cola', 'sst2'),
    swept=('mlm', 'diffusion', 'clm'), peaks=(1e-3, 2e-3), pairs='blimp_each5th.jsonl.gz')


def pretrained(given: Mapping[str, Any]) -> dict[str, Any]:
  """Train a run in this process: `comparison.pretrained`."""
  return comparison.pretrained(BENCH, given)


if __name__ == '__main__':
  comparison.main(BENCH)
