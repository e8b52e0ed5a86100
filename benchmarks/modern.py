"""Which modern change to BERT is worth what, in half an hour of two cores each.

    python -m benchmarks.modern --text=wiki.txt.xz --data=DIR --output=runs/modern
    python -m benchmarks.modern --text=wiki.txt.xz --data=DIR --output=runs/modern --only pace     # on a quiet machine
    python -m benchmarks.modern --text=wiki.txt.xz --data=DIR --output=runs/modern --only pretrain --arms all --seeds 1

Stages: pace, sweep, pretrain, finetune, table; what is kept in the folder is not done again, and an interrupted stage
goes on where it was. DIR has cola_ and sst2_train.tsv.gz and _dev.tsv.gz. Arms:

    bert      as published: norms behind sublayers, learned positions, MLM and NSP in rows of two texts, 15% of tokens
              masked, a tenth dropped, a rate that falls along a line
    norm      norms before sublayers, and a gated MLP (GELU of one projection, times another) of two thirds the width;
              embeddings are normalised as before, so that the first attention reads them as they are (ModernBERT)
    packed    rotary positions, and rows packed full whose documents do not see each other: no NSP, so no types and no
              pooler either (Warner et al. 2024)
    masks     30% of tokens are masked (Wettig et al. 2023)
    wsd       the rate stays, and falls along 1 - sqrt in the last fifth (Hägele et al. 2024)
    all       the four together, and nothing else
    dropout   done where it is named: a tenth of what attention gives is dropped and nothing else, as in ModernBERT
    rope      done where it is named: rotary positions alone, in BERT's rows of two texts, with NSP
    bert_muon done where it is named: BERT with Muon in place of Adam (Jordan et al. 2024)
    all_muon  done where it is named: all with Muon

`all` drops what BERT drops. ModernBERT's dropout is no part of the four, and in a run that reads no text twice, what it
is worth to drop less would stand in their place; `dropout` says how much that is. Pre-norm arms have the rate that
suits `all`, the others that of `bert`. All begin with the same deviation of weights, and are fine-tuned alike, through
a pooler, which only NSP has trained before. Without a norm of the embeddings, as GPT-2 has it, pre-norm is another
comparison: at two layers of 128 it did not leave the plateau of word frequencies in 1.5 million tokens, where BERT
needed half of that. bert and wsd do the same work: by how much their paces differ, paces are uncertain.
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
  """Returns what each arm changes."""
  norm = pre_norm(setting)
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


def pre_norm(setting: Setting) -> dict[str, Any]:
  """Returns the fields of a model with norms before its sublayers, and a gated MLP."""
  return {'model.block.norm_at': 'pre', 'model.embeddings.norm': True, 'model.stack.first_norm': False,
          'model.block.mlp.gated': True, 'model.block.mlp_dim': gated(4 * setting.width)}


def rotary() -> dict[str, Any]:
  """Returns the fields of a model whose positions are rotary."""
  return {'model.embeddings.absolute': 'none', 'model.block.attention.position': Rope()}


def gated(width: int, multiple: int = 16) -> int:
  """Returns the width of a gated MLP with as many parameters: two thirds, in whole vectors of a CPU.

  >>> gated(1024)
  688
  """
  return max(1, round(width * 2 / 3 / multiple)) * multiple


def config(setting: Setting, arm: str) -> PretrainRun:
  """Returns the run of an arm."""
  return validation.with_paths(equal_time.encoder(setting), {'name': arm, **arms(setting)[arm].changes})


BENCH = Bench(
    'benchmarks.modern', __doc__ or '', Setting, arms, config, {'15% masks': {}}, ('cola', 'sst2'),
    swept=('bert', 'all'), peaks=(5e-4, 1e-3, 2e-3), nothing=True)


def pretrained(given: Mapping[str, Any]) -> dict[str, Any]:
  """Does a run in this process: `comparison.pretrained`."""
  return comparison.pretrained(BENCH, given)


if __name__ == '__main__':
  comparison.main(BENCH)
