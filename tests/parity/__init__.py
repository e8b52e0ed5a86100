"""Golden cases of other code, run through plm_jax: which cases there are, who runs them, and how they are compared.

A case is a folder with case.json (what it is, tolerances), config.json, model.safetensors, inputs.npz and outputs.npz.
A runner takes a Case and gives outputs under the names of outputs.npz; RUNNERS says which, by family and class. What is
not there is unsupported, as is what a runner raises Unsupported for: listed as such, never passed over. Entries that
the case gives, or does not define enough to be computed, are masked by the runner (numpy.ma) and listed as not
compared.
"""
from collections.abc import Callable, Iterator
import dataclasses
import functools
import json
import pathlib

import numpy as np

from parity import (
    deberta,
    decoder,
    encoder,
    encoder_decoder,
    generation,
    glm,
    noises,
    objectives,
    optimizers,
    palm,
    spanbert,
    tables,
    trajectory,
    xlnet,
)

RUNNERS = {
    ('bert', 'BertModel'): encoder.run(encoder.backbone),
    ('bert', 'BertForPreTraining'): encoder.run(encoder.pretraining),
    ('bert', 'BertForMaskedLM'): encoder.run(encoder.masked_lm),
    ('bert', 'BertForNextSentencePrediction'): encoder.run(encoder.next_sentence),
    ('bert', 'BertForSequenceClassification'): encoder.run(encoder.sequence_classes),
    ('bert', 'BertForTokenClassification'): encoder.run(encoder.token_classes),
    ('bert', 'BertForMultipleChoice'): encoder.run(encoder.multiple_choice),
    ('bert', 'BertForQuestionAnswering'): encoder.run(encoder.question_answering),
    ('roberta', 'RobertaModel'): encoder.run(encoder.backbone),
    ('roberta', 'RobertaForMaskedLM'): encoder.run(encoder.masked_lm),
    ('roberta', 'RobertaForSequenceClassification'): encoder.run(encoder.sequence_classes),
    ('roberta', 'RobertaForTokenClassification'): encoder.run(encoder.token_classes),
    ('roberta', 'RobertaForMultipleChoice'): encoder.run(encoder.multiple_choice),
    ('roberta', 'RobertaForQuestionAnswering'): encoder.run(encoder.question_answering),
    ('xlnet', 'XLNetModel'): xlnet.run(xlnet.backbone),
    ('xlnet', 'XLNetLMHeadModel'): xlnet.run(encoder.masked_lm),
    ('xlnet', 'XLNetForSequenceClassification'): xlnet.run(encoder.sequence_classes),
    ('xlnet', 'XLNetForTokenClassification'): xlnet.run(encoder.token_classes),
    ('xlnet', 'XLNetForMultipleChoice'): xlnet.run(encoder.multiple_choice),
    ('xlnet', 'XLNetForQuestionAnsweringSimple'): xlnet.run(encoder.question_answering),
    ('albert', 'AlbertModel'): encoder.run(encoder.backbone),
    ('albert', 'AlbertForPreTraining'): encoder.run(encoder.pretraining),
    ('albert', 'AlbertForMaskedLM'): encoder.run(encoder.masked_lm),
    ('albert', 'AlbertForSequenceClassification'): encoder.run(encoder.sequence_classes),
    ('albert', 'AlbertForTokenClassification'): encoder.run(encoder.token_classes),
    ('albert', 'AlbertForMultipleChoice'): encoder.run(encoder.multiple_choice),
    ('albert', 'AlbertForQuestionAnswering'): encoder.run(encoder.question_answering),
    ('distilbert', 'DistilBertModel'): encoder.run(encoder.backbone),
    ('distilbert', 'DistilBertForMaskedLM'): encoder.run(encoder.masked_lm),
    ('distilbert', 'DistilBertForSequenceClassification'): encoder.run(encoder.sequence_classes),
    ('distilbert', 'DistilBertForTokenClassification'): encoder.run(encoder.token_classes),
    ('distilbert', 'DistilBertForMultipleChoice'): encoder.run(encoder.multiple_choice),
    ('distilbert', 'DistilBertForQuestionAnswering'): encoder.run(encoder.question_answering),
    ('deberta', 'DebertaModel'): encoder.run(encoder.backbone),
    ('deberta', 'DebertaForMaskedLM'): encoder.run(encoder.masked_lm),
    ('deberta', 'DebertaForSequenceClassification'): encoder.run(encoder.sequence_classes),
    ('deberta', 'DebertaForTokenClassification'): encoder.run(encoder.token_classes),
    ('deberta', 'DebertaForQuestionAnswering'): encoder.run(encoder.question_answering),
    ('deberta', 'DebertaV2Model'): encoder.run(encoder.backbone),
    ('deberta', 'DebertaV2ForMaskedLM'): encoder.run(encoder.masked_lm),
    ('deberta', 'DebertaV2ForSequenceClassification'): encoder.run(encoder.sequence_classes),
    ('deberta', 'DebertaV2ForTokenClassification'): encoder.run(encoder.token_classes),
    ('deberta', 'DebertaV2ForQuestionAnswering'): encoder.run(encoder.question_answering),
    ('deberta', 'DebertaV2ForMultipleChoice'): encoder.run(encoder.multiple_choice),
    ('deberta', 'run_emd'): deberta.run(deberta.mask_decoder),
    ('deberta', 'run_rtd'): deberta.run(deberta.replaced_tokens),
    ('gpt1', 'OpenAIGPTModel'): decoder.run(decoder.backbone),
    ('gpt1', 'OpenAIGPTLMHeadModel'): decoder.run(decoder.causal_lm),
    ('gpt1', 'OpenAIGPTDoubleHeadsModel'): decoder.run(decoder.double_heads),
    ('gpt1', 'OpenAIGPTForSequenceClassification'): decoder.run(encoder.sequence_classes),
    ('gpt2', 'GPT2Model'): decoder.run(decoder.backbone),
    ('gpt2', 'GPT2LMHeadModel'): decoder.run(decoder.causal_lm),
    ('gpt2', 'GPT2DoubleHeadsModel'): decoder.run(decoder.double_heads),
    ('gpt2', 'GPT2ForSequenceClassification'): decoder.run(encoder.sequence_classes),
    ('gpt2', 'GPT2ForTokenClassification'): decoder.run(encoder.token_classes),
    ('gpt2', 'GPT2ForQuestionAnswering'): decoder.run(encoder.question_answering),
    ('gpt3', 'GPT2LMHeadModel'): decoder.run(decoder.causal_lm),
    ('gpt_neo', 'GPTNeoModel'): decoder.run(decoder.backbone),
    ('gpt_neo', 'GPTNeoForCausalLM'): decoder.run(decoder.causal_lm),
    ('gpt_neo', 'GPTNeoForSequenceClassification'): decoder.run(encoder.sequence_classes),
    ('gpt_neo', 'GPTNeoForTokenClassification'): decoder.run(encoder.token_classes),
    ('gpt_neo', 'GPTNeoForQuestionAnswering'): decoder.run(encoder.question_answering),
    ('llama', 'LlamaModel'): decoder.run(decoder.backbone),
    ('llama', 'LlamaForCausalLM'): decoder.run(decoder.causal_lm),
    ('llama', 'LlamaForSequenceClassification'): decoder.run(encoder.sequence_classes),
    ('llama', 'LlamaForTokenClassification'): decoder.run(encoder.token_classes),
    ('llama', 'LlamaForQuestionAnswering'): decoder.run(encoder.question_answering),
    ('t5', 'T5Model'): encoder_decoder.run(encoder_decoder.backbone),
    ('t5', 'T5EncoderModel'): encoder_decoder.run(encoder_decoder.backbone),
    ('t5', 'T5ForConditionalGeneration'): encoder_decoder.run(encoder_decoder.seq2seq),
    ('t5', 'T5ForSequenceClassification'): encoder_decoder.run(encoder.sequence_classes),
    ('t5', 'T5ForQuestionAnswering'): encoder_decoder.run(encoder.question_answering),
    ('t5', 'MT5Model'): encoder_decoder.run(encoder_decoder.backbone),
    ('t5', 'MT5EncoderModel'): encoder_decoder.run(encoder_decoder.backbone),
    ('t5', 'MT5ForConditionalGeneration'): encoder_decoder.run(encoder_decoder.seq2seq),
    ('bart', 'BartModel'): encoder_decoder.run(encoder_decoder.backbone),
    ('bart', 'BartForConditionalGeneration'): encoder_decoder.run(encoder_decoder.seq2seq),
    ('bart', 'BartForSequenceClassification'): encoder_decoder.run(encoder.sequence_classes),
    ('bart', 'BartForQuestionAnswering'): encoder_decoder.run(encoder.question_answering),
    ('bart', 'MarianMTModel'): encoder_decoder.run(encoder_decoder.seq2seq),
    ('bart', 'MBartModel'): encoder_decoder.run(encoder_decoder.backbone),
    ('bart', 'MBartForConditionalGeneration'): encoder_decoder.run(encoder_decoder.seq2seq),
    ('bart', 'MBartForSequenceClassification'): encoder_decoder.run(encoder.sequence_classes),
    ('bart', 'MBartForQuestionAnswering'): encoder_decoder.run(encoder.question_answering),
    ('palm', 'run'): palm.run,
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
    ('optimizers', 'bert_adamw'): optimizers.bert_adamw,
    ('optimizers', 'torch_adamw'): optimizers.torch_adamw,
    ('optimizers', 'lamb_albert'): optimizers.lamb_albert,
    ('optimizers', 'lamb_apex'): optimizers.lamb_apex,
    ('optimizers', 'adafactor_small'): optimizers.adafactor,
    ('optimizers', 'adafactor_t5'): optimizers.adafactor_t5,
    ('optimizers', 'schedules'): optimizers.schedules,
    ('generation', 'GPT2LMHeadModel'): generation.decoder,
    ('generation', 'T5ForConditionalGeneration'): generation.encoder_decoder,
    ('generation', 'MT5ForConditionalGeneration'): generation.encoder_decoder,
    ('generation', 'BartForConditionalGeneration'): generation.encoder_decoder,
    ('generation', 'MBartForConditionalGeneration'): generation.encoder_decoder,
    ('trajectories', 'BertForPreTraining'): trajectory.run(trajectory.GivenMasks()),
    ('trajectories', 'GPT2LMHeadModel'): trajectory.run(trajectory.GivenText()),
    ('trajectories', 'T5ForConditionalGeneration'): trajectory.run(trajectory.GivenPairs()),
}
# Softmax does not feel them, so Adam makes their rounding noise visible: 1e-2 is what the cases' authors allow.
NOISY = ('.key.bias',)
FLOOR = 1e-5


@dataclasses.dataclass(frozen=True)
class Case:
  """One folder."""

  path: pathlib.Path
  name: str

  @functools.cached_property
  def about(self) -> dict:
    return json.loads((self.path / 'case.json').read_text())

  @functools.cached_property
  def config(self) -> dict:
    return json.loads((self.path / 'config.json').read_text())

  @functools.cached_property
  def inputs(self) -> dict[str, np.ndarray]:
    return arrays(self.path / 'inputs.npz')

  @functools.cached_property
  def outputs(self) -> dict[str, np.ndarray]:
    return arrays(self.path / 'outputs.npz')

  @property
  def kind(self) -> tuple[str, str]:
    """Family and class; where the case names none, or one of the AutoModels, the class of its configuration, and for
    references that have no classes what the case calls its runner."""
    cls = self.about.get('hf_class') or self.about.get('kind', '')
    if (not cls or cls.startswith('AutoModel')) and (self.path / 'config.json').exists():
      cls = [*(self.config.get('architectures') or ()), cls][0]
    return self.about.get('family', ''), cls or self.about.get('runner', '').partition(':')[2]

  @property
  def runner(self) -> Callable[['Case'], dict[str, np.ndarray]] | None:
    return RUNNERS.get(self.kind)

  def tolerance(self, output: str) -> float | np.ndarray:
    """What the case suggests for this output, or for each entry of it; without that, ten times the reference's own
    error in float32."""
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
  return [Case(path, path.relative_to(folder).as_posix() if path != folder else folder.name) for path in found]


def compare(case: Case, got: dict[str, np.ndarray]) -> Iterator[tuple[str, str, str, str, str]]:
  """-> (case, output, error, tolerance, verdict) of every output that the reference gave."""
  for name, want in case.outputs.items():
    if name not in got:
      yield case.name, name, '-', '-', 'FAILED: not computed'
      continue
    have = np.ma.asarray(got[name])
    if have.shape != want.shape:
      yield case.name, name, '-', '-', f'FAILED: shape {list(have.shape)}, expected {list(want.shape)}'
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
  """The entries at positions that are worth comparing, where the case says which."""
  mask_name = case.about.get('compare_where')
  if not mask_name:
    return x
  mask = case.inputs[mask_name].astype(bool)
  if 'attentions' in name:
    x = np.moveaxis(x, 1, -1)  # [B, H, Q, K] -> [B, Q, K, H]
  for shape in (mask, mask.reshape(-1, mask.shape[-1])):
    if x.shape[:shape.ndim] == shape.shape:
      return x[shape]
  return x


def arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
  with np.load(path) as file:
    return {name: file[name] for name in file.files}
