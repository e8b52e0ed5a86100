"""Run golden cases of other implementations through plm_jax: the list of cases, their runners, and
the comparison.

A case is a folder with case.json (description and tolerances), config.json, model.safetensors,
inputs.npz and outputs.npz. A runner takes a Case and returns outputs under the names of
outputs.npz. The tables below map a class, or a family and kind, to its runner. A case is
unsupported if it is in none of these tables, if some of its fields were not read, or if its runner
raises Unsupported; a single output is unsupported if its value is Unsupported. Unsupported cases
are listed, never skipped silently. A runner masks (numpy.ma) entries that the case provides itself
or does not define completely; these are listed as not compared.
"""
from collections.abc import Callable, Iterator
import dataclasses
import functools
import json
import pathlib
from typing import Any

import numpy as np

from parity import (
    deberta,
    decoder,
    elmo,
    encoder,
    encoder_decoder,
    fine_tuning,
    generation,
    glm,
    noises,
    objectives,
    optimizers,
    palm,
    sbert,
    spanbert,
    tables,
    trajectory,
    words,
    xlnet,
)
from parity.shared import Said, Unsupported

ENCODERS = {
    'Model': encoder.backbone, 'ForMaskedLM': encoder.masked_lm, **fine_tuning.KINDS}
DECODERS = {
    'Model': decoder.backbone, 'LMHeadModel': decoder.causal_lm, 'ForCausalLM': decoder.causal_lm,
    'DoubleHeadsModel': decoder.double_heads, **fine_tuning.KINDS}
BOTH = {
    'Model': encoder_decoder.backbone, 'EncoderModel': encoder_decoder.backbone,
    'MTModel': encoder_decoder.seq2seq,
    'ForConditionalGeneration': encoder_decoder.seq2seq, **fine_tuning.KINDS}
# Classes of transformers: the beginning of the name and the rest.
CLASSES = {
    **{name + rest: encoder.run(reading) for rest, reading in ENCODERS.items() for name in (
        'Bert', 'Roberta', 'XLMRoberta', 'Albert', 'DistilBert', 'Electra', 'Deberta', 'DebertaV2',
        'Ernie', 'XLM',
        'MegatronBert',
        'ModernBert', 'EuroBert', 'MPNet', 'XLMRobertaXL', 'RoFormer', 'NomicBert', 'Gte',
        'JinaBert', 'JinaEmbeddingsV3', 'Flaubert')},
    **{f'{name}ForPreTraining': encoder.run(encoder.pretraining)
       for name in ('Bert', 'MegatronBert', 'Albert', 'Ernie')},
    **{f'{name}ForNextSentencePrediction': encoder.run(encoder.next_sentence)
       for name in ('Bert', 'MegatronBert', 'Ernie')},
    'XLMWithLMHeadModel': encoder.run(encoder.masked_lm),
    'FlaubertWithLMHeadModel': encoder.run(encoder.masked_lm),
    'ElectraForPreTraining': encoder.run(encoder.replaced_tokens),
    'XLNetModel': xlnet.run(xlnet.backbone), 'XLNetLMHeadModel': xlnet.run(encoder.masked_lm),
    **{f'XLNet{rest}': xlnet.run(kind) for rest, kind in fine_tuning.KINDS.items()},
    **{name + rest: decoder.run(reading) for rest, reading in DECODERS.items() for name in (
        'OpenAIGPT', 'GPT2', 'GPTNeo', 'GPTNeoX', 'Llama', 'Qwen3', 'SmolLM3', 'Gemma2',
        'Gemma3', 'Gemma3Text', 'ModernBertDecoder')},
    **{name + rest: encoder_decoder.run(reading) for rest, reading in BOTH.items() for name in (
        'T5', 'MT5', 'UMT5', 'T5Gemma', 'Bart', 'MBart', 'Marian')},
}
GENERATING = {
    **dict.fromkeys(('GPT2LMHeadModel', 'OpenAIGPTLMHeadModel', 'GPTNeoForCausalLM',
                     'LlamaForCausalLM', 'GPTNeoXForCausalLM', 'Qwen3ForCausalLM',
                     'SmolLM3ForCausalLM', 'Gemma3ForCausalLM'),
                    generation.decoder),
    **dict.fromkeys(('T5ForConditionalGeneration', 'MT5ForConditionalGeneration',
                     'UMT5ForConditionalGeneration', 'T5GemmaForConditionalGeneration',
                     'BartForConditionalGeneration',
                     'MBartForConditionalGeneration', 'MarianMTModel'), generation.encoder_decoder),
}
TRAINING = {
    **dict.fromkeys(('BertForPreTraining', 'BertForMaskedLM', 'RobertaForMaskedLM',
                     'DistilBertForMaskedLM',
                     'AlbertForMaskedLM', 'ElectraForMaskedLM', 'XLMRobertaForMaskedLM',
                     'ErnieForMaskedLM',
                     'ErnieForPreTraining', 'XLMWithLMHeadModel', 'ModernBertForMaskedLM',
                     'EuroBertForMaskedLM', 'MPNetForMaskedLM'),
                    trajectory.run(trajectory.GivenMasks)),
    **dict.fromkeys(('GPT2LMHeadModel', 'OpenAIGPTLMHeadModel', 'GPTNeoForCausalLM',
                     'LlamaForCausalLM'),
                    trajectory.run(trajectory.GivenText)),
    **dict.fromkeys(('T5ForConditionalGeneration', 'MT5ForConditionalGeneration',
                     'UMT5ForConditionalGeneration',
                     'BartForConditionalGeneration',
                     'MBartForConditionalGeneration', 'MarianMTModel'),
                     trajectory.run(trajectory.GivenPairs)),
    **{f'{name}{rest}': trajectory.run(kind) for rest, kind in fine_tuning.KINDS.items()
       for name in (
        'Bert', 'Roberta', 'XLMRoberta', 'Albert', 'DistilBert', 'Electra', 'Deberta', 'DebertaV2',
        'Ernie', 'XLM',
        'MegatronBert',
        'XLNet', 'OpenAIGPT', 'GPT2', 'GPTNeo', 'Llama', 'T5', 'MT5', 'UMT5', 'Bart', 'MBart',
        'ModernBert',
        'EuroBert', 'MPNet')},
}
# References other than transformers: the family, and the kind or runner in the case.
KINDS = {
    ('deberta', 'run_emd'): deberta.run(deberta.mask_decoder),
    ('deberta', 'run_rtd'): deberta.run(deberta.replaced_tokens),
    ('gpt3', 'GPT2LMHeadModel'): decoder.run(decoder.causal_lm),
    ('elmo', 'run'): elmo.run,
    ('palm', 'run'): palm.run,
    ('sbert', 'BertModel'): sbert.run,
    ('spanbert', 'run'): spanbert.run,
    ('tables', 'run'): tables.run,
    ('objectives', 'run_bert'): objectives.pairs,
    ('objectives', 'run_albert'): objectives.pairs,
    ('glm', 'run'): glm.run,
    ('glm', 'run_mem'): glm.with_memory,
    ('objectives', 'run_spanbert'): objectives.spanbert,
    ('objectives', 'run_glm'): glm.blank_infilling,
    ('objectives', 'run_xlnet'): xlnet.permutation,
    ('objectives', 'run_t5'): noises.spans,
    ('objectives', 'run_bart'): noises.bart,
    ('wordvec', 'sgns'): words.word2vec,
    ('wordvec', 'glove'): words.glove,
    ('wordvec', 'fasttext'): words.fasttext,
    ('optimizers', 'bert_adamw'): optimizers.bert_adamw,
    ('optimizers', 'torch_adamw'): optimizers.torch_adamw,
    ('optimizers', 'lamb_albert'): optimizers.lamb_albert,
    ('optimizers', 'lamb_apex'): optimizers.lamb_apex,
    ('optimizers', 'adafactor_small'): optimizers.adafactor,
    ('optimizers', 'adafactor_t5'): optimizers.adafactor_t5,
    ('optimizers', 'schedules'): optimizers.schedules,
}
# Fields that describe a case and do not change a computation. All other fields must be read.
DESCRIBED = {
    'family', 'case', 'split', 'reference', 'runner', 'hf_class', 'kind', 'seed', 'note', 'weights',
    'stored_dtype',
    'outputs', 'grads', 'suggested_atol', 'fp32_vs_fp64', 'worst_max_abs', 'worst_rel_to_scale',
    'compare_where',
    'p',  # of tables: already in their names
    'untied',  # of T5: already in its configuration
    'forward_kwargs.return_dict', 'forward_kwargs.output_hidden_states',
    'forward_kwargs.output_attentions',
    'forward_kwargs.use_cache'}
# Softmax does not feel them, so Adam makes their rounding noise visible: 1e-2 is what the cases'
# authors allow.
NOISY = ('.key.bias',)
FLOOR = 1e-5


@dataclasses.dataclass(frozen=True)
class Case:
  """One folder."""

  path: pathlib.Path
  name: str

  @functools.cached_property
  def about(self) -> Said:
    return Said(json.loads((self.path / 'case.json').read_text()))

  @functools.cached_property
  def config(self) -> dict:
    return json.loads((self.path / 'config.json').read_text())

  @functools.cached_property
  def inputs(self) -> Said:
    return Said(arrays(self.path / 'inputs.npz'))

  @functools.cached_property
  def outputs(self) -> dict[str, np.ndarray]:
    return arrays(self.path / 'outputs.npz')

  @property
  def kind(self) -> tuple[str, str]:
    """Family and class. Without a class, or with an AutoModel, the class of the configuration;
    for references without classes, the runner named in the case."""
    cls = self.about.get('hf_class') or self.about.get('kind') or ''
    if (not cls or cls.startswith('AutoModel')) and (self.path / 'config.json').exists():
      cls = [*(self.config.get('architectures') or ()), cls][0]
    return self.about.get('family', ''), cls or self.about.get('runner', '').partition(':')[2]

  @property
  def runner(self) -> Callable[['Case'], dict[str, Any]] | None:
    for name, table in (('generate', GENERATING), ('train', TRAINING)):
      if name in self.about:
        return table.get(self.kind[1])
    return KINDS.get(self.kind) or (CLASSES.get(self.kind[1]) if 'hf_class' in self.about else None)

  def left(self) -> list[str]:
    """Return the fields of the case that no runner has read."""
    said = [name for name in self.about.left() if not {name, name.partition('.')[0]} & DESCRIBED]
    where = self.about.get('compare_where')
    given = (f'input {name}' for name in self.inputs.left() if name not in (where, 'none'))
    # whose parameter is not moved
    return said if self.kind == ('optimizers', 'schedules') else [*said, *given]

  def tolerance(self, output: str) -> float | np.ndarray:
    """Return the case's tolerance for this output, or for each entry; default: ten times the
    reference's own error in float32."""
    if self.outputs[output].dtype.kind in 'iub':
      return 0.0
    if self.kind[0] == 'trajectories' and output.endswith(NOISY):
      return 1e-2
    if self.kind[0] == 'objectives' and output == 'stats':
      return objectives.tolerances(self.outputs[output])
    if self.kind[0] == 'objectives' and any(part in output for part in objectives.SAMPLED):
      return objectives.tolerance(self.outputs[output])
    own = self.about.get('fp32_vs_fp64', {}).get(output, {}).get('max_abs', 0)
    return self.about.get('suggested_atol', {}).get(output, max(FLOOR, 10 * own))


def find(folder: pathlib.Path) -> list[Case]:
  """The cases in `folder`, at any depth, or the one that it is."""
  found = sorted(path.parent for path in folder.rglob('case.json'))
  return [Case(path, path.relative_to(folder).as_posix() if path != folder else folder.name)
          for path in found]


def compare(case: Case, got: dict[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
  """-> (case, output, error, tolerance, verdict) of every output that the reference gave."""
  for name, want in case.outputs.items():
    if name not in got:
      yield case.name, name, '-', '-', 'FAILED: not computed'
      continue
    if isinstance(got[name], Unsupported):
      yield case.name, name, '-', '-', f'unsupported: {got[name]}'
      continue
    have = np.ma.asarray(got[name])
    if have.shape != want.shape:
      failed = f'FAILED: shape {list(have.shape)}, expected {list(want.shape)}'
      yield case.name, name, '-', '-', failed
      continue
    hidden = np.ma.getmaskarray(have)
    if hidden.any():
      yield case.name, name, '-', '-', f'not compared: {hidden.sum()} of {hidden.size} entries'
    if hidden.all():
      continue
    have = np.where(hidden, want, have.data)
    have, want, tolerance = (where(case, name, x).astype(np.float64).ravel() for x in (
        have, want, np.broadcast_to(case.tolerance(name), want.shape)))
    same = (have == want) | (np.isnan(have) & np.isnan(want))
    error = np.where(same, 0, np.abs(have - np.where(same, 0, want)))
    # The entry that is nearest to its tolerance, or furthest beyond; most outputs have one for all.
    worst = np.argmax(np.nan_to_num(error, nan=np.inf) - tolerance) if error.size else slice(0)
    error, allowed = (np.max(x[worst], initial=0) for x in (error, tolerance))
    yield case.name, name, f'{error:.2e}', f'{allowed:.1e}', 'ok' if error <= allowed else 'FAILED'


def where(case: Case, name: str, x: np.ndarray) -> np.ndarray:
  """Return the entries at the positions that are compared, if the case lists positions."""
  mask_name = case.about.get('compare_where')
  if not mask_name:
    return x
  mask = case.inputs[mask_name].astype(bool)
  if 'attentions' in name or name.startswith('cache.'):
    x = np.moveaxis(x, 1, -1)  # [B, H, Q, K] -> [B, Q, K, H]
  for shape in (mask, mask.reshape(-1, mask.shape[-1])):
    if x.shape[:shape.ndim] == shape.shape:
      return x[shape]
  return x


def arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
  with np.load(path) as file:
    return {name: file[name] for name in file.files}
