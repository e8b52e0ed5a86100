"""Public API for models: load, train, fill masks, generate, export.

Each function is also a function of `plm_jax`. A `model` argument is a model from `load`, or the
folder of a run or of a checkpoint, or the name of a model of the Hugging Face hub, which is then
loaded for this call only. A single text is the same as a list of one text. Errors that the caller
can fix are one-line exceptions, `plm_jax.errors.UserError`. Fine-tuned models are in
`plm_jax.api.transfer`, text vectors in `plm_jax.api.similarity`, linguistic analysis in
`plm_jax.api.knowledge`, and corpora in `plm_jax.api.corpus`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax

from plm_jax import storage, validation
from plm_jax.errors import ConfigError
from plm_jax.loading import generation_config, loaded_model
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.storage import hub

# Other modules are imported by the function that needs them: all together take a second.
if TYPE_CHECKING:
  from plm_jax.config.run import PretrainRun, PretrainScale
  from plm_jax.inference.fill_mask import Candidates
  from plm_jax.inference.generate import Continuation, Prompt, TextDelta
  from plm_jax.report.history import History

Path = str | os.PathLike[str]
Model = LoadedModel | Path
Dtype = Literal['float32', 'float16', 'bfloat16']
SENTENCE_TRANSFORMERS_USAGE = 'SentenceTransformer({folder!r}) of sentence-transformers loads it'
SPARSE_ENCODER_USAGE = 'SparseEncoder({folder!r}) of sentence-transformers loads it'
PYLATE_USAGE = 'models.ColBERT({folder!r}) of PyLate loads it'


class Exported(NamedTuple):
  """The result of an export."""

  how: str
  """a sentence on what loads the checkpoint"""
  lost: Sequence[str] = ()
  """heads that were left out because the other library has no counterpart"""


def load(folder: Path, mesh: MeshConfig | None = None) -> LoadedModel:
  """Load the model of a run or of a checkpoint; `plm_jax.load` also loads static vectors.

  Raises:
    CheckpointError, ConvertError: the folder holds no model that can be read.
  """
  if '/' not in str(folder) and not storage.resolve_path(folder).exists():
    from plm_jax import recipes
    if str(folder) in recipes.all_recipes():
      raise ConfigError(f'{folder} is a recipe, not a trained model: train it first, or give the '
                        f'folder of a run, such as runs/{folder}-laptop')
  if mesh is None:
    trained = loaded_model.load_model(folder)
  else:
    devices = make_mesh(mesh)
    with jax.set_mesh(devices):
      trained = loaded_model.load_model(folder, devices)
    trained = dataclasses.replace(trained, mesh=devices)
  trained.device_params()
  return trained


def fill_mask(
    model: Model, prompts: str | Sequence[str], top: int = 5) -> list[list[Candidates]]:
  """Predict the masked tokens of texts.

  >>> candidates = plm_jax.fill_mask(
  ...     'runs/bert_base-laptop', 'Returns the [MASK] of the array.', top=2)[0][0]
  >>> for token, probability in candidates:  # of the first text, for its first mask
  ...   print(f'P({token}) = {probability:.3f}')
  P(...) = 0...
  P(...) = 0...

  Args:
    model: an encoder with a masked-language-model head, or a GLM
    prompts: texts with one or more [MASK]; for a GLM also [sMASK] and [gMASK]
    top: number of candidates per mask

  Returns:
    For each prompt and each of its masks, (token, probability) pairs, the most likely first. A GLM
    writes one text of any length per blank, without a probability (nan), and reads it before it
    fills the next blank.

  Raises:
    CheckpointError: the model does not fill masks.
    ConfigError: a prompt has no mask, or is too long.
  """
  trained = ensure_loaded(model)
  with mesh_context(trained):
    if trained.model.kind == 'infilling':
      from plm_jax.inference import glm_infill
      return [[[(text, float('nan'))] for text in texts]
              for texts in glm_infill.fill_blanks(trained, as_list(prompts))]
    from plm_jax.inference import fill_mask as filling
    return filling.fill(trained, as_list(prompts), top)


def generate(
    model: Model, prompts: str | Sequence[Prompt], config: GenerationConfig | None = None,
    seed: int = 0, **options: Any) -> list[list[Continuation]]:
  """Generate continuations of texts; an encoder-decoder generates outputs for its inputs.

  A masked language model writes max_new tokens by iterative unmasking.

  >>> (found,), = plm_jax.generate('runs/gpt2_small-laptop', 'Returns the', max_new=8)
  >>> print('Returns the' + found.text)
  Returns the...

  Args:
    model: a decoder, a GLM, an encoder-decoder, or a model of masked diffusion
    prompts: texts, or their token ids
    config: generation settings: greedy search, sampling, beam search, length; None: the settings in
      the checkpoint's generation_config.json, or greedy search without that file
    seed: random seed for sampling
    **options: fields of `config` to override: max_new, temperature, top_p, beams, number, stop, ...

  Returns:
    For each prompt config.number continuations, each with its text and tokens.

  Raises:
    CheckpointError: the model does not generate text.
    ConfigError: a prompt that is too long or empty, or options that contradict each other.
  """
  from plm_jax.inference import generate as generation
  trained = ensure_loaded(model)
  with mesh_context(trained):
    settings = generation_config.resolve_generation_config(
        trained.generation, config, options)
    return generation.generate(trained, as_list(prompts), settings, seed)


def stream(
    model: Model, prompt: Prompt, config: GenerationConfig | None = None, seed: int = 0,
    **options: Any) -> Iterator[TextDelta]:
  """Generate a continuation and stream its text; together the text that `generate` returns.

  >>> pieces = plm_jax.stream('runs/gpt2_small-laptop', 'Returns the', max_new=8)
  >>> print('Returns the', *(piece.text for piece in pieces), sep='')
  Returns the...

  Arguments and errors are those of `generate`, for one prompt. Beam search, or several
  continuations, cannot be streamed.

  Yields:
    The new `text`, and in `ended` the reason why the text has ended, '' before the end.
  """
  from plm_jax.inference import generate as generation
  trained = ensure_loaded(model)
  if config is None and 'beams' not in options:
    options = {**options, 'beams': 1}  # a checkpoint may set beams, which cannot be streamed
  config = generation_config.resolve_generation_config(trained.generation, config, options)
  if config.number > 1:
    raise ConfigError(f'one text is streamed: number is 1, got {config.number}')
  pieces = generation.stream(trained, [prompt], config, seed)

  def iterate():
    # The mesh is set for each step only, not while the caller has the control.
    while True:
      with mesh_context(trained):
        found = next(pieces, None)
      if found is None:
        return
      yield found[0]

  return iterate()


def recipe(name: str, scale: PretrainScale = 'paper', **options: Any) -> PretrainRun:
  """Return the configuration of a recipe, which reproduces a published model.

  >>> bert = plm_jax.recipe(
  ...     'bert_base', scale='laptop', output='runs/mine', data={'path': ('corpus.txt',)})
  >>> bert.folder, bert.data.path
  ('runs/mine', ('corpus.txt',))

  Args:
    name: a name that `python -m plm_jax train` lists
    scale: paper: as published; gpu: fitted to the devices and to `hours`; laptop: minutes on two
      cores; test: seconds
    **options: fields to override; a section is a dictionary: train={'save_every': 500}

  Raises:
    ConfigError: there is no such recipe or field, or the field does not take the value.
  """
  from plm_jax import recipes
  run = recipes.find_recipe(name)(scale, options.get('warm_start', ''))
  return validation.with_overrides(run, options)


def train(config: str | PretrainRun, **options: Any) -> LoadedModel:
  """Train a model from its text to its report, or resume the run in its folder.

  >>> bert = plm_jax.recipe('bert_base', scale='test')
  >>> trained = plm_jax.train(bert, output='runs/mine', data={'path': ('corpus.txt',)})
  bert_base-test: 8 steps (6 + 2, in 2 phases) on ...
  >>> 'fill_mask' in trained.capabilities
  True

  Args:
    config: a recipe, or its name
    **options: fields to override, as for `recipe`; with a name also its scale

  Returns:
    The model, as `load` returns it.

  Raises:
    ConfigError, SourceError, CheckpointError: options, text or a folder that cannot be used (found
      before training), or divergence.
  """
  from plm_jax.runs import run as runs
  if isinstance(config, str):
    config = recipe(config, **options)
  else:
    config = validation.with_overrides(config, options)
  if config.mode != 'train':
    raise ConfigError(f'a run trains with mode train, got {config.mode}: that is a command, '
                      '`python -m plm_jax train`')
  runs.run(config)
  return load(config.folder)


def history(folder: Path) -> History:
  """Read the metrics that a run has written so far.

  >>> plm_jax.history('runs/bert_base-laptop').curves['mlm']['heldout']
  [(..., ...)]

  Args:
    folder: folder of a run, on a disk or in a bucket

  Returns:
    The configuration, and the curves of all metrics. `curves[metric]` has the keys 'train' and
    'heldout', each with a list of (step, value).

  Raises:
    CheckpointError: no run has written there.
  """
  from plm_jax.report import history as curves
  return curves.history(folder)


def export(
    model: Model, folder: Path, dtype: Dtype | None = None, labels: Sequence[str] = (),
    average: int = 0) -> Exported:
  """Write a checkpoint that transformers loads, with its tokenizer; an ELMo is for AllenNLP.

  The export of a run gets a model card, README.md, with the training settings.

  >>> plm_jax.export('runs/bert_base-laptop', 'exported').how
  "transformers loads it with ...from_pretrained('exported')"

  Args:
    model: the model; the folder of another library's checkpoint is passed to `convert`
    folder: a folder that does not exist yet, or is empty
    dtype: dtype of the tensors; None: float32, or the dtype of a checkpoint
    labels: class names of the classification head, in order; none: those of the model
    average: number of newest checkpoints of a run whose mean is written; 0: the best, or the newest

  Returns:
    What loads the checkpoint, and the heads that were left out.

  Raises:
    ConvertError: transformers has no such model; labels for a model without classes; the folder is
      not empty.
    CheckpointError: the run has fewer checkpoints than are to be averaged.
  """
  from plm_jax import conversion
  from plm_jax.layers.dense import count_parameters
  from plm_jax.report import model_card
  if not isinstance(model, LoadedModel) and conversion.is_checkpoint(model) and not average:
    return convert(model, folder, dtype)
  if average and isinstance(model, LoadedModel):
    raise ConfigError('checkpoints of a run are averaged: give the folder of the run, not a model')
  # Parameters that are only written stay on the host.
  trained = model if isinstance(model, LoadedModel) else loaded_model.load_model(
      model, average=average)
  params, lost = conversion.exportable_params(trained.family, trained.params)
  if labels and not {f'heads_{name}' for name in conversion.LABELED_HEADS} & params.keys():
    raise conversion.ConvertError('labels name the classes of a head, and none that has some is '
                                  f'written: {labels}')
  like = conversion.ExportTemplate(
      trained.family, tuple(labels) or trained.labels, task_special_ids(trained, params),
      trained.length, trained.task.export_attributes() if trained.task else {})
  write_extra = make_modules_writer(trained)
  conversion.save(
      folder, trained.model, params, trained.tokenizer, dtype, like=like, write_extra=write_extra)
  usage = conversion.get_family(trained.family).usage
  if write_extra:
    usage = SENTENCE_TRANSFORMERS_USAGE
    if trained.similarity == 'maxsim':
      usage = PYLATE_USAGE
    elif trained.task.is_sparse:
      usage = SPARSE_ENCODER_USAGE
  if trained.source:
    card = model_card.run_card(trained.source, model_card.ExportedModel(
        trained.family, trained.capabilities, count_parameters(params),
        usage.format(folder='ORG/NAME') + '.'), trained.checkpoint)
    if card and average:
      card += (f'\nThe parameters are the mean of the {average} newest checkpoints of the run. The '
               'metrics above are those of one checkpoint.\n')
    readme = storage.resolve_path(folder) / 'README.md'
    if card and not readme.exists():
      storage.write(readme, card)
  path = os.fspath(folder)
  if write_extra:
    others = [name for name in lost if name not in ('embedding', 'relation')]
    return Exported(usage.format(folder=path), others)
  return Exported(usage.format(folder=path), tuple(lost))


def push(
    model: Model, name: str, public: bool = False, dtype: Dtype | None = None, revision: str = '',
    message: str = '') -> str:
  """Export a model and upload it to the Hugging Face hub, with its model card, as one commit.

  `plm_jax.load` and transformers load it by its name. Log in before with `hf auth login`.

  >>> plm_jax.push('runs/bert_base-laptop', 'ORG/NAME')
  'http.../ORG/NAME'

  Args:
    model: the model, or the folder of a run or of a checkpoint
    name: ORG/NAME, or NAME for the user that is logged in; it is made if there is none
    public: whether everyone can read it; by default it is private
    dtype: dtype of the tensors, as for `export`
    revision: branch; '': the main branch
    message: message of the commit

  Returns:
    The address of the model.

  Raises:
    HubError: nothing was uploaded, for example because nobody is logged in.
    ConvertError: the model cannot be exported.
  """
  with tempfile.TemporaryDirectory(prefix='plm_jax-push-') as folder:
    draft = pathlib.Path(folder, name.rpartition('/')[2] or 'model')
    export(model, draft, dtype)
    return hub.upload(draft, name, public, revision, message or 'Upload model with plm_jax')


def task_special_ids(
    trained: LoadedModel, params: Mapping[str, Any]
) -> tuple[Sequence[int], Sequence[int], Sequence[int]] | None:
  """Return the special token ids before, between and after the texts of a task input.

  None: the tokenizer class of transformers adds the same ones.
  """
  from plm_jax.tasks.input_formats import get_input_format
  from plm_jax.tasks.kinds import HEADS
  from plm_jax.tokenizers import ByteBPE, FairseqSentencePiece, TokenizerJson
  if not trained.tokenizer:
    return None
  vocab = trained.tokenizer.vocab
  heads = {f'heads_{name}' for name in HEADS}
  if trained.model.kind == 'decoder' and (trained.task or heads & params.keys()):
    # A decoder's task inputs end with a token that its pre-training texts do not have.
    return get_input_format(trained.family).special_ids(vocab)
  if trained.model.kind != 'encoder' or trained.model.cls_last:
    return None
  # In transformers, byte-level BPE is RoBERTa's and puts two separators between texts, as do the
  # subword tokens of XLM-R; other tokenizers are BERT's, with one separator. Here a DeBERTa with
  # byte-level BPE has one, and a RoBERTa may be trained with any tokenizer.
  found = get_input_format(trained.family).special_ids(vocab)
  usual = 1
  if isinstance(trained.tokenizer, (ByteBPE, FairseqSentencePiece)):
    usual = 2
  if isinstance(trained.tokenizer, TokenizerJson):
    usual = trained.tokenizer.separators
  return found if len(found[1]) != usual else None


def make_modules_writer(trained: LoadedModel) -> Callable[[pathlib.Path], None] | None:
  """Return a function that writes the modules of sentence-transformers.

  None: the model has not learned sentence vectors.
  """
  from plm_jax.conversion import sentence_transformers
  from plm_jax.inference.sentence_vectors import has_sentence_vectors, max_row_length
  if not has_sentence_vectors(trained):
    return None
  modules = sentence_transformers.SentenceTransformersFolder(
      trained.source, trained.task.vector, trained.params.get('heads_embedding', {}),
      max_row_length(trained), trained.prompts, trained.default_prompt, trained.pools_prompt,
      trained.similarity)
  return functools.partial(
      sentence_transformers.write_modules, given=modules, width=trained.model.block.width)


def convert(checkpoint: Path, folder: Path, dtype: Dtype | None = None) -> Exported:
  """Convert another library's checkpoint to one that transformers loads.

  >>> plm_jax.convert('exported', 'half', dtype='bfloat16').how
  "transformers loads it with ...from_pretrained('half')"

  Args:
    checkpoint: a transformers checkpoint, or a checkpoint of T5X or of the original BERT, SpanBERT,
      DeBERTa or GLM code
    folder: a folder that does not exist yet, or is empty
    dtype: dtype of the tensors; None: the dtype that they have

  Raises:
    ConvertError: parts of the checkpoint are unknown (the message names all of them), or the folder
      is not empty.
  """
  from plm_jax import conversion
  from plm_jax.conversion import sentence_transformers
  from plm_jax.layers.splade import SpladeConfig
  modules = sentence_transformers.read_folder(checkpoint)
  source = conversion.load(modules.root if modules else checkpoint)
  if modules:
    write_extra = functools.partial(
        sentence_transformers.write_modules, given=modules, width=source.config.block.width)
    conversion.save(
        folder, source.config, source.params, source.tokenizer, dtype, like=source,
        write_extra=write_extra)
    usage = SENTENCE_TRANSFORMERS_USAGE
    if modules.similarity == 'maxsim':
      usage = PYLATE_USAGE
    elif isinstance(modules.vector, SpladeConfig):
      usage = SPARSE_ENCODER_USAGE
    return Exported(usage.format(folder=os.fspath(folder)))
  conversion.save(folder, source.config, source.params, source.tokenizer, dtype, like=source)
  return Exported(conversion.get_family(source.family).usage.format(folder=os.fspath(folder)))


def ensure_loaded(model: Model) -> LoadedModel:
  """Return a loaded model, and load one that is given as a folder."""
  return model if isinstance(model, LoadedModel) else load(model)


def mesh_context(trained: LoadedModel) -> contextlib.AbstractContextManager:
  """Return a context that sets the mesh of a model that several devices share."""
  return jax.set_mesh(trained.mesh) if trained.mesh else contextlib.nullcontext()


def as_list(texts):
  """Return a list of texts; a single text becomes a list of one."""
  return [texts] if isinstance(texts, str) else list(texts)
