"""Modern changes to BERT, one by one and together: models trained from the same text for the same time.

    python -m benchmarks.modern --text=wiki.txt.xz --data=DIR --output=runs/modern
    python -m benchmarks.modern --text=wiki.txt.xz --data=DIR --output=runs/modern --only pace     # on a quiet machine
    python -m benchmarks.modern --text=wiki.txt.xz --data=DIR --output=runs/modern --only pretrain --arms all --seeds 1

The stages are pace, sweep, pretrain, finetune and table. Results in the folder are not computed again, and interrupted
stages resume. DIR has cola_ and sst2_train.tsv.gz and _dev.tsv.gz. Arms:

    bert      as published: post-norm, learned positions, MLM and NSP with two texts per sequence, 15% of the tokens
              masked, dropout 0.1, linear decay of the learning rate
    norm      pre-norm, and a gated MLP (GELU) with two thirds of the width; the embeddings are normalized as before
              (ModernBERT)
    packed    rotary positions and packed sequences, whose documents do not attend to each other: no NSP, and therefore
              no segment types and no pooler (Warner et al. 2024)
    masks     30% of the tokens are masked (Wettig et al. 2023)
    wsd       a constant learning rate that falls along 1 - sqrt in the last fifth (Hägele et al. 2024)
    all       these four together
    dropout   only if named: dropout of the attention output and nowhere else, as in ModernBERT
    rope      only if named: rotary positions alone, with two texts per sequence and NSP
    bert_muon only if named: BERT with Muon in place of AdamW (Jordan et al. 2024)
    all_muon  only if named: all with Muon

Pre-norm arms have the learning rate that is best for `all`, the other arms the one that is best for `bert`. All arms
have the same standard deviation of initial weights and dropout of 0.1, and all are fine-tuned in the same way, with a
pooler that only NSP has trained before. Without a norm of the embeddings, as in GPT-2, a pre-norm model of two layers
of 128 did not learn more than word frequencies from 1.5 million tokens; BERT did after half as many. The arms bert
and wsd do the same work, so the difference of their paces shows how precise paces are.
"""
from collections.abc import Mapping
from typing import Any

from benchmarks import comparison, equal_time
from benchmarks.comparison import Bench
from benchmarks.equal_time import Arm, Setting
from plm_jax import validation
from plm_jax.config.run import PretrainRun
from plm_jax.layers.rope import Rope
from plm_jax.objectives.row_builders import Single

ENDS = 0, 1, 2  # seeds of the first and the last arm


def arms(setting: Setting) -> Mapping[str, Arm]:
  """Return the arms by name."""
  norm = pre_norm(setting.width)
  packed = {**rotary(), 'model.embeddings.types': 0, 'model.pooler': False,
            'objective.pair': Single(), 'data.assembly': 'packed'}
  masks = {'objective.mask_rate': 0.3, 'objective.held_out_mask_rate': 0.15}
  wsd = {'optim.schedule': 'wsd'}
  every, muon = norm | packed | masks | wsd, {'optim.kind': 'muon'}
  dropout = {'model.block.dropout': 0.0, 'model.block.attention.dropout': 0.0, 'model.block.attention.out_dropout': 0.1}
  return {
      'bert': Arm('BERT', {}, 'bert', ENDS), 'norm': Arm('+ pre-norm and GLU', norm, 'all'),
      'packed': Arm('+ rope and packed rows', packed, 'bert'), 'masks': Arm('+ 30% masks', masks, 'bert'),
      'wsd': Arm('+ WSD', wsd, 'bert'), 'all': Arm('all', every, 'all', ENDS),
      'dropout': Arm('+ dropout of attention alone', dropout, 'bert', usual=False),
      'rope': Arm('+ rope alone', rotary(), 'bert', usual=False),
      'bert_muon': Arm('BERT, Muon', muon, 'bert_muon', ENDS, usual=False),
      'all_muon': Arm('all, Muon', every | muon, 'all_muon', ENDS, usual=False)}


def pre_norm(width: int) -> dict[str, Any]:
  """Return the fields of a pre-norm model with a gated MLP."""
  return {'model.block.norm_at': 'pre', 'model.embeddings.norm': True, 'model.stack.first_norm': False,
          'model.block.mlp.gated': True, 'model.block.mlp_dim': gated(4 * width)}


def rotary() -> dict[str, Any]:
  """Return the fields of a model with rotary positions."""
  return {'model.embeddings.absolute': 'none', 'model.block.attention.position': Rope()}


def gated(width: int, multiple: int = 16) -> int:
  """Return the width of a gated MLP with as many parameters: two thirds, rounded to a multiple.

  >>> gated(1024)
  688
  """
  return max(1, round(width * 2 / 3 / multiple)) * multiple


def config(setting: Setting, arm: str) -> PretrainRun:
  """Return the run of an arm."""
  return validation.with_paths(equal_time.encoder(setting), {'name': arm, **arms(setting)[arm].changes})


BENCH = Bench(
    'benchmarks.modern', __doc__ or '', Setting, arms, config, {'15% masks': {}}, ('cola', 'sst2'),
    swept=('bert', 'all'), peaks=(5e-4, 1e-3, 2e-3), nothing=True)


def pretrained(given: Mapping[str, Any]) -> dict[str, Any]:
  """Train a run in this process: `comparison.pretrained`."""
  return comparison.pretrained(BENCH, given)


if __name__ == '__main__':
  comparison.main(BENCH)
