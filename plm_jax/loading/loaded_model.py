"""Trained models: load a run, or another library's checkpoint, as a `LoadedModel`."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from etils import epath
import flax.linen as nn
import jax
from jax.sharding import Mesh
import numpy as np

from plm_jax import conversion, environment, storage
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.checkpoints.restore import (
  find_run_checkpoints,
  read_newest_meta,
  restore_mean_params,
  restore_params,
)
from plm_jax.conversion import sentence_transformers, tokenizer_files
from plm_jax.conversion.sentence_transformers import PROMPT_NAMES
from plm_jax.conversion.source_formats import describe_adapter
from plm_jax.errors import ConfigError, UserError, name_field
from plm_jax.layers.pooling import VectorConfig
from plm_jax.layers.splade import SpladeConfig
from plm_jax.layers.token_vectors import TokenVectorConfig
from plm_jax.loading import device_params, generation_config
from plm_jax.loading.build import build_model, parameter_shapes
from plm_jax.loading.generation_config import GenerationDefaults
from plm_jax.metrics.nearest import Comparison
from plm_jax.optim import adapters
from plm_jax.sharding import shard_array, shardings
from plm_jax.storage import hub
from plm_jax.tokenizers import MissingTokenizerError, Tokenizer
from plm_jax.tokenizers import load as load_tokenizer

# The configuration of runs and the tasks take time to import. A checkpoint of another library that
# has no task head needs neither.
if TYPE_CHECKING:
  from plm_jax.config.run import RunConfig

TASK_HEADS = ('label', 'tags', 'span', 'choice')
"""heads of downstream tasks in checkpoints of other libraries"""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LoadedModel:
  """A model that can be used as it is, or trained further; `repr` shows what it is and what it
  can do."""

  family: str
  """model_type of transformers, in whose format `export` writes."""
  model: Any
  """Configuration of the backbone."""
  heads: dict[str, nn.Module]
  """Heads that have parameters."""
  params: Any
  """`backbone`, and `heads_NAME` each; host arrays move to the device when they are first used."""
  tokenizer: Tokenizer | None
  """None where a checkpoint has none."""
  source: str = ''
  """Folder from which it was loaded."""
  mesh: Mesh | None = None
  """Devices that share its parameters. None means one device."""
  labels: tuple[str, ...] = ()
  """Names of the classes of a task's head."""
  task: Any = None
  """Downstream task that it was fine-tuned on, a `tasks.contract.Task`, or None."""
  length: int = 0
  """Sequence length of its fine-tuning in tokens. 0 means that it is not known."""
  generation: GenerationDefaults = GenerationDefaults()
  """Generation settings in the files of an imported checkpoint."""
  prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  """Texts before each text, by their names, such as 'query' and 'document'."""
  default_prompt: str = ''
  """Name of the prompt of `encode`. Empty means that it adds none."""
  pools_prompt: bool = True
  """Whether the tokens of a prompt are pooled."""
  generates_by_unmasking: bool = False
  """Whether the masked-LM head was trained for every mask rate (masked diffusion)."""
  starts_every_row: bool = False
  """Whether each sequence of its pre-training began with the start token, also where its text began
  inside a document. So do runs; other libraries' decoders have the token at the start of a document
  alone, if at all."""
  checkpoint: str = ''
  """Name of the checkpoint of the run, such as chck_10M. Empty means the best or the newest."""

  def device_params(self, *parts: str) -> dict[str, Any]:
    """Return the parameters as arrays on the device, where they stay.

    Args:
      parts: the wanted parts, such as 'backbone'; a part that the model does not have is left
        out. None given: all.
    """
    params = device_params.device_params(self)
    return {name: params[name] for name in parts or params if name in params}

  def derive_once(self, key: Hashable, make: Callable[[Any], Any]) -> Any:
    """Return make(parameters on the device), computed once until a parameter is replaced."""
    return device_params.derive_once(self, key, make)

  @property
  def similarity(self) -> Comparison:
    """Similarity by which its sentence vectors are compared."""
    return getattr(self.task, 'compared_by', 'cosine')

  def find_prompt(self, name: str) -> str:
    """Return the text of a prompt.

    Args:
      name: 'own': the default prompt; 'none': no text; or the name of a prompt. A model that has no
        prompt for a 'query' or a 'document' uses its default prompt.

    Raises:
      ConfigError: there is no such prompt.
    """
    names = {'own': [self.default_prompt], 'none': ['']}.get(name, [name])
    if name in PROMPT_NAMES:
      names = [*PROMPT_NAMES[name], self.default_prompt]
    for candidate in names:
      if not candidate or candidate in self.prompts:
        return self.prompts.get(candidate, '')
    raise ConfigError(f'the model has no prompt {name!r}: prompts are own, none, '
                      f'{", ".join(dict.fromkeys([*PROMPT_NAMES, *self.prompts]))}')

  @property
  def lm_head_name(self) -> str:
    """Name of the head that predicts the next token from those before it; '': there is none."""
    if 'lm' in self.heads and getattr(self.model, 'causal', True):
      return 'lm'
    if 'mlm' in self.heads and has_shifted_targets(self.model):
      return 'mlm'
    return ''

  @property
  def capabilities(self) -> tuple[str, ...]:
    """Names of the functions of `plm_jax` that work with the model."""
    kind, lm = self.model.kind, bool(self.lm_head_name)
    function = self.task.example_format.function if self.task else ''
    embeds = ranks = False
    if self.task:
      from plm_jax.tasks.reranking import RerankTask
      from plm_jax.tasks.sentence_embedding import EmbeddingTask
      embeds, ranks = isinstance(self.task, EmbeddingTask), isinstance(self.task, RerankTask)
    scores_tokens = 'mlm' in self.heads or (lm and kind == 'decoder')
    able = {
        'encode': True,
        'similar': embeds,
        'search': embeds,
        'rerank': ranks or self.similarity == 'maxsim',
        'predict': self.task is not None,
        'answer': function == 'answer',
        'tag': function == 'tag',
        'fill_mask': 'mlm' in self.heads or (lm and kind == 'infilling'),
        'generate': lm or self.generates_by_unmasking,
        'stream': lm,
        'score': lm and kind != 'encoder-decoder',
        'perplexity': (lm and kind in ('decoder', 'encoder')) or self.generates_by_unmasking,
        'likelihood': scores_tokens,
        'minimal_pairs': scores_tokens}
    names = [name for name, works in able.items() if works and self.tokenizer]
    return (*names, 'export')

  def __repr__(self) -> str:
    model = self.model
    if model.kind == 'recurrent':
      layers, width = f'{model.layers}', model.width
    else:
      stacks = (model.stack, model.decoder) if model.kind == 'encoder-decoder' else (model.stack,)
      layers = ' + '.join(f'{stack.blocks}' for stack in stacks)
      width = model.block.width
    parameters = sum(x.size for x in jax.tree.leaves(nn.unbox(self.params)))
    tokenizer, pieces = 'no tokenizer', None
    if self.tokenizer:
      kind = self.tokenizer.kind.replace('_', '-')
      tokenizer = f'{kind} tokenizer of {self.tokenizer.vocab.size:,} tokens'
      pieces = self.tokenizer.pieces
    lines = [
        f'<{self.family}, {model.kind}: {layers} layers of {width}, {parameters:,} parameters',
        f' heads: {", ".join(self.heads) or "none"}; {tokenizer}']
    settings = self.generation.describe(pieces)
    if settings:
      lines.append(f' generation: {settings}')
    lines.append(f' from {self.source or "memory"}; can {", ".join(self.capabilities)}>')
    return '\n'.join(lines)


def has_shifted_targets(model: Any) -> bool:
  """Tell whether a model predicts a token from the position before it (GPT-BERT)."""
  return getattr(getattr(model, 'head', None), 'shifted', False)


def load_model(
    folder: epath.PathLike, mesh: Mesh | None = None, checkpoint: str = '', average: int = 0,
) -> LoadedModel:
  """Load the newest parameters of the run in `folder`, or another library's checkpoint.

  Args:
    folder: that of the run or checkpoint, or the name of a model of the Hugging Face hub.
    mesh: devices that share the parameters. A host reads no more than its devices need.
    checkpoint: name of a checkpoint that the run has kept, such as chck_10M, instead of the newest.
    average: number of newest checkpoints of the run whose mean is loaded instead; 0: no mean.

  Raises:
    CheckpointError: the run has no readable checkpoint.
    ConvertError: the checkpoint cannot be converted.
  """
  if name := hub.parse_name(folder):
    folder = hub.pin(name)
  sentence_vectors = sentence_transformers.read_folder(folder)
  if sentence_vectors or conversion.is_checkpoint(folder):
    if checkpoint or average:
      raise CheckpointError(f'{folder} is not the folder of a run: it has no checkpoint '
                            f'{checkpoint or "to average"}')
    root = sentence_vectors.root if sentence_vectors else folder
    return load_imported(folder, root, sentence_vectors, mesh)
  config, tokenizer, boxed = read_run(folder, checkpoint)
  if average:
    params = restore_mean_params(hub.find_folder(folder) / 'checkpoints', average, nn.unbox(boxed))
  else:
    layout = None if mesh is None else shardings(boxed, mesh)
    params = restore_params(
        find_run_checkpoints(folder, name=checkpoint), nn.unbox(boxed), layout)
  task, objective = config.objective, config.training_objective
  loaded = LoadedModel(
      config.family, config.model, objective.heads(config.model),
      adapters.merge(objective.lifecycle.exported(params)), tokenizer, str(folder), mesh,
      getattr(task, 'labels', ()), generates_by_unmasking=objective.generates,
      checkpoint=checkpoint)
  from plm_jax.tasks.contract import Task
  if isinstance(task, Task):
    length = config.train.phases[-1].length
    # Vectors are mostly of documents, which `search` compares with queries.
    default = 'document' if task.prompts.get('document') else ''
    return dataclasses.replace(
        loaded, task=apply_decision(folder, task), length=length, prompts=task.prompts,
        default_prompt=default)
  return dataclasses.replace(loaded, starts_every_row=objective.starts_every_row)


def load_imported(folder: epath.PathLike, root: epath.PathLike, sentence_vectors: Any,
                  mesh: Mesh | None) -> LoadedModel:
  """Load another library's checkpoint; see `load_model`.

  Args:
    folder: folder that was given.
    root: folder of the encoder.
    sentence_vectors: what sentence-transformers adds to the encoder; None: nothing.
    mesh: as for `load_model`.

  Raises:
    ConvertError: the tokenizer has tokens for which the model has no embeddings.
  """
  imported = conversion.load(root, lazy=mesh is not None)
  vocab = imported.tokenizer.vocab if imported.tokenizer else None
  rows = getattr(imported.config, 'vocab', 0)
  # Padding is masked: many LLaMA files have a token for it that the model does not know.
  if vocab and rows and set(range(rows, vocab.size)) - {vocab.pad}:
    raise conversion.ConvertError(
        f'{folder}: the tokenizer has {vocab.size:,} tokens, but the model has embeddings of '
        f'{rows:,}: tokens were added, and the model was not resized. `finetune '
        f'{environment.option("init")}` adds rows for them; or remove them from the tokenizer')
  params, task = imported.params, None
  if any(name in imported.heads for name in TASK_HEADS):
    from plm_jax.tasks import kinds
    task = kinds.infer_task(imported)
  if mesh is not None:
    params = jax.tree.map(place_on_mesh, params, shardings(imported.shapes(), mesh))
  lengths = [length for length in (imported.length, imported.config.max_length) if length]
  loaded = LoadedModel(
      imported.family, imported.config, dict(imported.heads), params, imported.tokenizer,
      str(folder), mesh, imported.labels, task, min(lengths, default=0) if task else 0,
      generation=generation_config.read_generation_defaults(imported))
  return add_sentence_vectors(loaded, sentence_vectors) if sentence_vectors else loaded


def add_sentence_vectors(
    trained: LoadedModel,
    given: sentence_transformers.SentenceTransformersFolder) -> LoadedModel:
  """Add the head that makes sentence vectors to the encoder of a folder of
  sentence-transformers."""
  from plm_jax.tasks.contract import DEFAULT_ROW_LENGTH
  from plm_jax.tasks.late_interaction import LateInteractionTask
  from plm_jax.tasks.sentence_embedding import EmbeddingTask
  if isinstance(given.vector, TokenVectorConfig):
    task: Any = LateInteractionTask(family=trained.family, vector=given.vector)
  else:
    similarity: Any = given.similarity
    task = EmbeddingTask(family=trained.family, vector=given.vector, similarity=similarity)
  check_head_params(trained, given)
  params = dict(trained.params)
  if given.params:
    params['heads_embedding'] = given.params
  if trained.model.kind == 'decoder' and trained.tokenizer:
    theirs = tokenizer_files.encode_with_special_tokens(given.root, 'a')
    ours = task.input_format.make_row(
        [trained.tokenizer.encode('a')], trained.tokenizer.vocab, DEFAULT_ROW_LENGTH).tokens
    if theirs is not None and theirs != ours:
      raise conversion.ConvertError(
          f'{given.root}: its tokenizer reads the text a as {theirs}, with other special tokens '
          f'than rows of a {trained.family} have here, {ours}: the vectors would be others')
  lengths = [length for length in (given.length, trained.model.max_length) if length]
  return dataclasses.replace(
      trained, heads={**trained.heads, **task.heads(trained.model)}, params=params, task=task,
      length=min(lengths, default=0), prompts=given.prompts, default_prompt=given.default_prompt,
      pools_prompt=given.pools_prompt)


def check_head_params(
    trained: LoadedModel, given: sentence_transformers.SentenceTransformersFolder) -> None:
  """Raise ConvertError if the parameters of a folder's head do not fit its encoder."""
  if isinstance(given.vector, SpladeConfig):
    if 'mlm' not in trained.heads:
      raise conversion.ConvertError(f'{given.root}: sparse vectors are made of masked-LM logits, '
                                    'and the checkpoint has no masked-LM head')
    weights = given.params.get('query_weights')
    if weights is not None and len(weights) != trained.model.vocab:
      raise conversion.ConvertError(
          f'{given.root}: queries have weights for {len(weights):,} tokens, and the model has '
          f'{trained.model.vocab:,}')
    return
  size = trained.model.block.width
  if isinstance(given.vector, VectorConfig):
    size *= len(given.vector.pooling)
  for name, layer in given.params.items():
    if len(layer['kernel']) != size:
      raise conversion.ConvertError(f'{given.root}: the layer {name} reads vectors of '
                                    f'{len(layer["kernel"])} numbers, and these have {size}')
    size = layer['kernel'].shape[1]


def read_adapter_run(folder: epath.PathLike) -> tuple[RunConfig, Any]:
  """Read a run with adapters, and its parameters without merging them.

  Raises:
    ConfigError: the run has no adapter, or did not start from a model that others could have too.
  """
  config, _, boxed = read_run(folder)
  if config.tuning.adapter.kind == 'none' or not config.warm_start:
    lacks = 'tuning.adapter.kind' if config.tuning.adapter.kind == 'none' else 'warm_start'
    raise ConfigError(f'{folder} was trained without {name_field(lacks)}: it has no adapter of a '
                      'model')
  return config, restore_params(find_run_checkpoints(folder), nn.unbox(boxed))


def read_model_config(folder: epath.PathLike) -> tuple[str, Any]:
  """Read the family and the backbone's configuration of a run, or of another library's
  checkpoint."""
  if conversion.is_checkpoint(folder):
    imported = conversion.load(folder, heads=(), lazy=True)
    return imported.family, imported.config
  config = read_config(folder)
  return config.family, config.model


def read_run(
    folder: epath.PathLike, checkpoint: str = '') -> tuple[RunConfig, Tokenizer, Any]:
  """Read the configuration, the tokenizer and the shapes of the parameters of a run.

  checkpoint: as for `load_model`.

  Returns:
    (configuration, tokenizer, shapes with their logical axes).

  Raises:
    CheckpointError: the first two differ from what the newest checkpoint records.
  """
  folder, config = hub.find_folder(folder), read_config(folder)
  tokenizer = load_tokenizer(folder / 'tokenizer')
  recorded = read_newest_meta(find_run_checkpoints(folder, name=checkpoint))
  mismatches = config_mismatches(folder, config, tokenizer, recorded)
  if mismatches:
    raise CheckpointError('; '.join(mismatches))
  model = build_model(config, tokenizer.vocab)
  return config, tokenizer, parameter_shapes(config, model)


def read_config(folder: epath.PathLike) -> RunConfig:
  """Read the configuration of a run.

  Raises:
    CheckpointError: the folder is not one of a run.
    ConfigError: the configuration cannot be read.
  """
  from plm_jax.config import serialization
  from plm_jax.config.run import RunConfig
  path = hub.find_folder(folder) / 'config.json'
  with storage.io_errors_as(path, 'read', CheckpointError):
    if not path.parent.exists():
      raise CheckpointError(f'there is no folder {folder}')
    if not path.exists():
      message = describe_adapter(path.parent)
      raise CheckpointError(
          message or f'{folder} is not the folder of a run: it has no config.json')
  config = serialization.from_json(storage.read_json(path, error=ConfigError), str(path))
  if not isinstance(config, RunConfig):
    raise ConfigError(
        f'{path} describes a {type(config).__name__}, expected a Run (word vectors are loaded by '
        'plm_jax.word_vectors.load)')
  return config


def find_tokenizer(folder: epath.PathLike) -> Tokenizer | None:
  """Load the tokenizer of a run or checkpoint; None where it has none.

  Raises:
    TokenizerError: it is damaged.
  """
  if conversion.is_checkpoint(folder):
    return conversion.load(folder, heads=(), lazy=True).tokenizer
  try:
    return load_tokenizer(folder)
  except MissingTokenizerError:
    return None


def config_mismatches(folder: epath.Path, config: RunConfig, tokenizer: Tokenizer,
                      recorded: dict[str, Any]) -> list[str]:
  """List how config.json and the tokenizer of a run differ from what a checkpoint recorded."""
  from plm_jax.config import resume, serialization
  problems = []
  if recorded.get('tokenizer') != tokenizer.hash:
    problems.append(f'{folder / "tokenizer"} is damaged: it is not the tokenizer that the run was '
                    'trained with')
  # How long a run is may change after its newest checkpoint.
  differences = resume.differences(serialization.from_json(recorded.get('config')), config)
  changed = [line for line in differences if line.partition(':')[0] not in resume.SCHEDULE_FIELDS]
  if changed:
    problems.append(f'{folder / "config.json"} is damaged: it is not what the run was trained with '
                    f'({changed[0]})')
  return problems


def place_on_mesh(x, sharding):
  """Place an array on the mesh; every host has it whole, or can read it in parts."""
  if isinstance(x, jax.Array) and x.sharding == sharding:
    return x
  return shard_array(x if isinstance(x, conversion.LazyParameter) else np.asarray(x), sharding)


DECISION_FILE = 'decision.json'
"""fields of a task that are chosen after training, such as thresholds"""


def write_decision(folder: epath.PathLike, fields: dict[str, Any]) -> None:
  """Write the chosen fields of the task of the run in `folder`."""
  storage.write(storage.resolve_path(folder) / DECISION_FILE, json.dumps(fields, indent=1) + '\n')


def apply_decision(folder: epath.PathLike, task: Any) -> Any:
  """Return the task of the run in `folder` with its chosen fields, if there are any.

  Raises UserError if the file is damaged.
  """
  path = storage.resolve_path(folder) / DECISION_FILE
  if not path.exists():
    return task
  try:
    fields = json.loads(path.read_text())
    found = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return dataclasses.replace(task, **found)
  except (ValueError, TypeError, AttributeError) as error:
    raise UserError(f'{path}: expected fields of the task as JSON: {error}. Delete the file to use '
                    'the fields of config.json') from error
