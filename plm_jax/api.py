"""The front door: what `import plm_jax` gives, a function for each thing that people want of a model.

Where a `model` is asked for, it is what `load` gave, or the folder of a run or of a checkpoint, which is then loaded
for this one call. Where texts are, a single one is a list of one. What a user can mend is said by an exception of one
line, `plm_jax.errors.Expected`. What is fine-tuned, and asked then, is in `plm_jax.transfer`; vectors are in
`plm_jax.similarity`, what a model knows of language in `plm_jax.knowledge`, and what is done with text before a run in
`plm_jax.corpus`.
"""
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import os
import pathlib
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from plm_jax import checked, conversion, recipes, storage
from plm_jax.cli import card, curves
from plm_jax.cli import run as runs
from plm_jax.cli.curves import History
from plm_jax.config import ConfigError, Experiment, Scale
from plm_jax.embeddings import exchange
from plm_jax.embeddings.encoding import embeds, longest_of
from plm_jax.evaluation import perplexity as sliding
from plm_jax.evaluation import scoring
from plm_jax.evaluation.perplexity import Perplexity
from plm_jax.inference import blanks, loading
from plm_jax.inference import fill_mask as filling
from plm_jax.inference import generate as generation
from plm_jax.inference.fill_mask import Candidates
from plm_jax.inference.generate import Continuation, Piece, Prompt
from plm_jax.inference.loading import Trained
from plm_jax.inference.search import GenerationConfig
from plm_jax.layers.dense import count
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.tasks.forms import form_of
from plm_jax.tokenizers import ByteBPE, LanguagePieces

Path = str | os.PathLike[str]
Model = Trained | Path
Dtype = Literal['float32', 'float16', 'bfloat16']

ASKED = ('label', 'tags', 'span', 'choice', 'embedding')  # heads of tasks


class Exported(NamedTuple):
  """What became of a checkpoint that was written for others."""

  how: str
  """what reads it"""
  lost: Sequence[str] = ()
  """heads that others have no counterpart of, and which were left out"""


def load(folder: Path, mesh: MeshConfig | None = None) -> Trained:
  """Loads the newest checkpoint of a run, or a checkpoint of transformers, T5X or an original code.

  Args:
    folder: on a disk or in a bucket
    mesh: how devices share a model that one does not hold, such as MeshConfig(1, tensor=4)

  Returns:
    The model; it says what it is and what it can do:

    >>> plm_jax.load('runs/bert_base-laptop')
    <bert, encoder: 2 layers of ..., ... parameters
     heads: mlm, nsp; wordpiece tokenizer of ... pieces
     from runs/bert_base-laptop; can encode, fill_mask, likelihood, minimal_pairs, export>

  Raises:
    CheckpointError, ConvertError: the folder holds no model that can be read.
  """
  if mesh is None:
    return loading.load(folder)
  devices = make_mesh(mesh)
  with jax.set_mesh(devices):
    return dataclasses.replace(loading.load(folder, devices), mesh=devices)


def fill_mask(model: Model, prompts: str | Sequence[str], top: int = 5) -> list[list[Candidates]]:
  """Fills the blanks of texts.

  >>> (words,), = plm_jax.fill_mask('runs/bert_base-laptop', 'Returns the [MASK] of the array.', top=3)
  >>> [word for word, probability in words if probability > 0.5]
  []

  Args:
    model: an encoder with a masked language model head, or a GLM
    prompts: each with one or more [MASK]; of a GLM also [sMASK] and [gMASK]
    top: how many words to give for each

  Returns:
    For each prompt, for each blank in it, words and their probabilities, the likeliest first. A GLM writes one text of
    any length into a blank, with no probability (nan), and reads it when it comes to those that follow.

  Raises:
    CheckpointError: the model fills no blanks.
    ConfigError: a prompt has none, or is too long.
  """
  trained = opened(model)
  with on(trained):
    if trained.model.kind == 'infilling':
      return [[[(text, float('nan'))] for text in written] for written in blanks.fill(trained, several(prompts))]
    return filling.fill(trained, several(prompts), top)


def generate(
    model: Model, prompts: str | Sequence[Prompt], config: GenerationConfig = GenerationConfig(), seed: int = 0,
    **options: Any) -> list[list[Continuation]]:
  """Continues texts; an encoder-decoder reads them and writes others.

  >>> (found,), = plm_jax.generate('runs/gpt2_small-laptop', 'Returns the', max_new=8)
  >>> text, reason = 'Returns the' + found.text, found.ended

  Args:
    model: a decoder, a GLM or an encoder-decoder
    prompts: texts, or their ids
    config: how: greedily, by lot, by beams, how long
    seed: of what is drawn
    **options: fields of `config` that are to be otherwise: max_new, temperature, top_p, beams, number, stop, ...

  Returns:
    For each prompt as many continuations as config.number says, each with its text and tokens.

  Raises:
    CheckpointError: the model writes no texts.
    ConfigError: a prompt that is too long or empty, options that do not go together.
  """
  trained = opened(model)
  with on(trained):
    return generation.generate(trained, several(prompts), checked.changed(config, options), seed)


def stream(
    model: Model, prompt: Prompt, config: GenerationConfig = GenerationConfig(), seed: int = 0,
    **options: Any) -> Iterator[Piece]:
  """Continues a text, and gives what is written as it comes: together the text that `generate` gives.

  >>> pieces = plm_jax.stream('runs/gpt2_small-laptop', 'Returns the', max_new=8)
  >>> text = ''.join(piece.text for piece in pieces)

  Args and errors are those of `generate`, for one prompt; beams cannot be streamed, nor several at once.

  Yields:
    What is new, `text`, and by what the whole has `ended`, '' while it has not.
  """
  config = checked.changed(config, options)
  if config.number > 1:
    raise ConfigError(f'one text is streamed: number is 1, got {config.number}')
  trained = opened(model)
  pieces = generation.stream(trained, [prompt], config, seed)
  def asked():
    while True:
      with on(trained):
        found = next(pieces, None)
      if found is None:
        return
      yield found[0]
  return asked()


def score(model: Model, pairs: Sequence[tuple[str, str]], start: bool = True) -> np.ndarray:
  """Scores what follows a text, or fills its blank.

  >>> likely, unlikely = plm_jax.score(
  ...     'runs/gpt2_small-laptop', [('Returns the', ' array'), ('Returns the', ' giraffe')])

  Args:
    model: a decoder, or a GLM
    pairs: a context, which may be empty, and its continuation; of a GLM a text with one blank, and what fills it
    start: a text begins with the token that begins texts in training

  Returns:
    [N] log-likelihoods of the continuations, natural, all tokens together. `plm_jax.evaluation.scoring` tells more.

  Raises:
    CheckpointError: the model gives texts no probability.
    ConfigError: a continuation without tokens.
  """
  trained = opened(model)
  with on(trained):
    if trained.model.kind == 'infilling':
      return blanks.score(trained, pairs)
  return np.array([found.logprob for found in scoring.of(trained, start, trained.mesh).score(pairs)])


def perplexity(
    model: Model, texts: str | Sequence[str], length: int = 0, stride: int = 0, start: bool = True) -> Perplexity:
  """Measures how well a decoder predicts texts, by a window that slides over each.

  >>> found = plm_jax.perplexity('runs/gpt2_small-laptop', 'corpus.txt', length=32)
  >>> found.per_token > found.per_byte > 1
  True

  Args:
    model: a decoder
    texts: files and globs, by commas, each a text of its own, of .jsonl each line; or a list of texts
    length: tokens in a window; 0: as many as the model reads
    stride: tokens between the beginnings of windows; 0: half of the length
    start: a text begins with the token that begins texts in training; without it its first token is given

  Returns:
    Perplexity a token, a word, a byte, and the counts behind them.

  Raises:
    CheckpointError: the model gives texts no probability.
    ConfigError, SourceError: a window that does not fit, texts that are not there or have nothing to predict.
  """
  trained = opened(model)
  scorer = scoring.of(trained, start, trained.mesh)
  return sliding.perplexity(scorer, sliding.texts_of(texts) if isinstance(texts, str) else texts, length, stride)


def recipe(name: str, scale: Scale = 'paper', **options: Any) -> Experiment:
  """Finds the recipe of a published model.

  >>> bert = plm_jax.recipe('bert_base', scale='laptop', output='runs/mine', data={'path': ('corpus.txt',)})
  >>> bert.folder, bert.data.path
  ('runs/mine', ('corpus.txt',))

  Args:
    name: as `python -m plm_jax train` lists them
    scale: as published, for minutes on two cores, or for seconds
    **options: fields that are to be otherwise; of a section, a dictionary: train={'save_every': 500}

  Raises:
    ConfigError: there is no such recipe or field, or a value that the field does not take.
  """
  return checked.changed(recipes.find(name)(scale), options)


def train(config: str | Experiment, **options: Any) -> Trained:
  """Trains a model, from its text to its report; or goes on with the run that its folder holds.

  >>> bert = plm_jax.recipe('bert_base', scale='test')
  >>> trained = plm_jax.train(bert, output='runs/mine', data={'path': ('corpus.txt',)})
  bert_base: 8 steps on ...
  >>> 'fill_mask' in trained.can
  True

  Args:
    config: a recipe, or its name
    **options: fields that are to be otherwise, as `recipe` takes them; beside a name, its scale too

  Returns:
    The model, as `load` gives it.

  Raises:
    ConfigError, SourceError, CheckpointError: what cannot be trained, before anything is; or diverges.
  """
  config = recipe(config, **options) if isinstance(config, str) else checked.changed(config, options)
  if config.mode != 'train':
    raise ConfigError(f'a run trains with mode train, got {config.mode}: that is a command, `python -m plm_jax train`')
  runs.run(config)
  return load(config.folder)


def history(folder: Path) -> History:
  """Reads what a run has written of itself up to now, for curves.

  >>> steps, losses = zip(*plm_jax.history('runs/bert_base-laptop').curves['mlm']['heldout'])

  Args:
    folder: of a run, on a disk or in a bucket

  Returns:
    Its configuration, and `curves`: of a figure, of 'train' and 'heldout', points (step, value).

  Raises:
    CheckpointError: no run has written there.
  """
  return curves.history(folder)


def export(model: Model, folder: Path, dtype: Dtype | None = None, labels: Sequence[str] = ()) -> Exported:
  """Writes a checkpoint that transformers loads, with its tokenizer; of an ELMo one that AllenNLP loads. That of a run
  has a README.md which tells how it came about, as model hubs show it.

  >>> plm_jax.export('runs/bert_base-laptop', 'exported').how
  "transformers loads it with ...from_pretrained('exported')"

  Args:
    model: what is to be written; the folder of another library's checkpoint is one that `convert` takes
    folder: not there yet, or empty
    dtype: of the tensors; None: float32, or of a checkpoint what it had
    labels: names of the classes of a head that has some, in their order; none: those that the model comes with

  Returns:
    What reads it, and which heads were left out.

  Raises:
    ConvertError: transformers has no such model; labels of a model without classes; the folder is not empty.
  """
  if not isinstance(model, Trained) and conversion.is_checkpoint(model):
    return convert(model, folder, dtype)
  trained = opened(model)
  params, lost = conversion.counterpart(trained.family, trained.params)
  if labels and not {f'heads_{name}' for name in conversion.LABELLED} & params.keys():
    raise conversion.ConvertError(f'labels name the classes of a head, and none that has some is written: {labels}')
  like = conversion.Like(trained.family, tuple(labels) or trained.labels, around(trained, params), modules_of(trained))
  conversion.save(folder, trained.model, params, trained.tokenizer, dtype, like=like)
  told = trained.source and card.of_run(trained.source, trained.family, trained.can, count(params))
  if told and not (readme := storage.path_of(folder) / 'README.md').exists():
    storage.write(readme, told)
  if like.beside:
    return Exported(f'SentenceTransformer({os.fspath(folder)!r}) of sentence-transformers loads it',
                    [name for name in lost if name not in ('embedding', 'relation')])
  return Exported(conversion.family_of(trained.family).read.format(folder=os.fspath(folder)), tuple(lost))


def around(trained: Trained, params: Mapping[str, Any]) -> tuple[Sequence[int], Sequence[int], Sequence[int]] | None:
  """Returns the ids before, between and behind the texts of a task's row, None where transformers' class of the
  tokenizer puts the same there."""
  if not trained.tokenizer:
    return None
  # Rows of a decoder's task have an end that its texts have not in pre-training.
  if trained.model.kind == 'decoder' and {f'heads_{name}' for name in ASKED} & params.keys():
    return form_of(trained.family).around(trained.tokenizer.vocab)
  if trained.model.kind != 'encoder' or trained.model.cls_last:
    return None
  # There byte-level BPE is RoBERTa's, with two separators between texts as XLM-R's pieces have them, and other pieces
  # are BERT's, with one; but a DeBERTa of byte-level BPE has one, and a RoBERTa that was trained here any pieces.
  found = form_of(trained.family).around(trained.tokenizer.vocab)
  usual = 2 if isinstance(trained.tokenizer, (ByteBPE, LanguagePieces)) else 1
  return found if len(found[1]) != usual else None


def modules_of(trained: Trained) -> Callable[[pathlib.Path], None] | None:
  """Makes what writes the modules of sentence vectors, where a model has learned them."""
  if not embeds(trained):
    return None
  return functools.partial(
      exchange.write, vector=trained.task.vector, params=trained.params.get('heads_embedding', {}),
      width=trained.model.block.width, length=longest_of(trained))


def convert(checkpoint: Path, folder: Path, dtype: Dtype | None = None) -> Exported:
  """Rewrites another library's checkpoint as one that transformers loads.

  >>> plm_jax.convert('exported', 'half', dtype='bfloat16').how
  "transformers loads it with ...from_pretrained('half')"

  Args:
    checkpoint: of transformers, of T5X, of the original BERT, SpanBERT, DeBERTa or GLM
    folder: not there yet, or empty
    dtype: of the tensors; None: what they are

  Raises:
    ConvertError: something in it is not understood, all of which is named; the folder is not empty.
  """
  source = conversion.load(checkpoint)
  conversion.save(folder, source.config, source.params, source.tokenizer, dtype, like=source)
  return Exported(conversion.family_of(source.family).read.format(folder=os.fspath(folder)))


def opened(model: Model) -> Trained:
  """Loads what is only named."""
  return model if isinstance(model, Trained) else load(model)


def on(trained: Trained) -> contextlib.AbstractContextManager:
  """Sets the devices that share the model, where several do."""
  return jax.set_mesh(trained.mesh) if trained.mesh else contextlib.nullcontext()


def several(texts):
  """Makes a list of one of a single text."""
  return [texts] if isinstance(texts, str) else list(texts)
