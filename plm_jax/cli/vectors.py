"""Implement `python -m plm_jax vectors`, and `train` for recipes of word vectors."""
from collections.abc import Mapping, Sequence
import itertools
import os
import sys
from typing import Annotated, Literal

import tyro

from plm_jax import environment, errors, storage, streams, validation
from plm_jax.cli import options
from plm_jax.cli.flags import name_flags
from plm_jax.cli.options import command
from plm_jax.errors import ConfigError
from plm_jax.inference.samples import GenerationSample
from plm_jax.recipes import word_vectors
from plm_jax.report.environment import print_on_leader
from plm_jax.runs import conclude, preflight
from plm_jax.sources.lines import ReadStats, read_lines
from plm_jax.storage import bucket_check, compilation_cache
from plm_jax.word_vectors import (
  classifier,
  evaluation,
  fasttext_bin,
  formats,
  load,
  word2vec,
)
from plm_jax.word_vectors.classifier import ClassifierConfig
from plm_jax.word_vectors.train import VectorResult, VectorRun, load_run, train

REPORT_WORDS = 8
"""number of words whose neighbors a report shows"""
SKIPPED_WORDS = 100
"""most frequent words, which the report skips since they are near all others"""


def start(name: str, args: Sequence[str]) -> None:
  """Train word vectors by the recipe of a name, with the options of the command line.

  Exits with status 1 and one line on bad input, and with status 75 where a signal has stopped it.
  """
  scope = name_flags(validation.field_paths(VectorRun))
  with streams.protect(tolerant=True), errors.exit_on_error(), scope:
    result = train_vectors(parse(name, args))
    errors.exit_unless_finished(result.finished)


def parse(name: str, args: Sequence[str]) -> VectorRun:
  """Parse the options of a run over the defaults of its recipe and scale."""
  default = word_vectors.recipe(name, options.scale_option(args))
  called = f'{environment.program()} train {name}'
  return options.parse_run(default, args, called, word_vectors.__doc__ or '')[0]


def train_vectors(config: VectorRun) -> VectorResult:
  """Train word vectors, from the text to the report."""
  validation.check(config)
  bucket_check.check_reachable(preflight.bucket_uses(config))
  compilation_cache.use_compilation_cache()
  print_on_leader(f'{config.name}: {config.train.epochs} epochs, output in {config.folder}')
  result = train(config)
  if not result.finished:
    print(f'stopped at call {result.step:,} and saved: the same command resumes from there',
          file=sys.stderr)
    return result
  vectors = result.vectors
  headline = {}
  if result.heldout:
    headline['Held-out loss'] = f'{result.heldout["loss"]:.4f}'
    headline['Held-out text'] = (
        ', '.join(config.data.heldout_path) or f'{config.data.heldout:.3%} of the sentences')
  headline |= {'Words': f'{len(vectors):,}', 'Width': f'{vectors.matrix.shape[1]}',
               'Words per second': f'{result.per_second:,.0f}',
               'Wall time': f'{result.seconds / 60:.1f} min'}
  words = vectors.words[SKIPPED_WORDS:SKIPPED_WORDS + REPORT_WORDS]
  samples = []
  for word in words or vectors.words[:REPORT_WORDS]:
    near = ' '.join(neighbor for neighbor, _ in vectors.nearest(word, top=5))
    samples.append(GenerationSample(word, near))
  path = conclude.write_run_report(config, config.name, headline, samples=samples)
  for sample in samples:
    print(f'{sample.prompt} ⟶ {sample.text}')
  print(f'\nreport: {path}\nmore:   python -m plm_jax vectors nearest {config.folder} WORD')
  return result


@command(top='[1, 1000000]')
def nearest_command(
    vectors: tyro.conf.Positional[str], words: tyro.conf.Positional[tuple[str, ...]],
    away: tuple[str, ...] = (), top: int = 10) -> None:
  """Prints the nearest neighbors of a word, or of the mean direction of several words.

  Args:
    vectors: run folder, or a word2vec, GloVe or fastText file
    words: words to find neighbors of
    away: words whose vectors are subtracted
    top: number of neighbors to print
  """
  if not words:
    raise ConfigError('there is no word: give one or more')
  for word, cosine in load(vectors).nearest(words, away, top):
    print(f'{cosine:7.4f}  {word}')


@command(top='[1, 1000000]')
def analogy_command(
    vectors: tyro.conf.Positional[str], a: tyro.conf.Positional[str], b: tyro.conf.Positional[str],
    c: tyro.conf.Positional[str], how: Literal['add', 'mul'] = 'add', top: int = 5) -> None:
  """Prints answers to the analogy: A is to B as C is to what?

  Args:
    vectors: run folder or vector file
    a: word A, such as man
    b: word B, such as king
    c: word C, such as woman
    how: method: 3CosAdd (add) or 3CosMul (mul)
    top: number of answers to print
  """
  for word, score in load(vectors).analogy(a, b, c, how, top):
    print(f'{score:7.4f}  {word}')


@command()
def measure_command(
    vectors: tyro.conf.Positional[str], files: tyro.conf.Positional[tuple[str, ...]],
    lower: bool = True) -> None:
  """Evaluates vectors on word similarity (Spearman's correlation) and analogies.

  Args:
    vectors: run folder or vector file
    files: word pairs with a score, separated by tabs (.tsv), or analogies with four words per line;
      also .gz and .xz
    lower: lowercase the words of the files
  """
  if not files:
    raise ConfigError('there is no file with pairs or analogies: give one or more')
  found = load(vectors)
  print(f'{"file":34}{"measure":14}{"value":>8}  questions')
  for file in files:
    name = os.path.basename(file)
    for how, score in measure_file(found, file, lower).items():
      print(f'{name:34}{how:14}{score.value:>8.2f}  {score.answered:,} of {score.total:,}')


def measure_file(vectors, file: str, lower: bool) -> Mapping[str, evaluation.VectorScore]:
  """Evaluate vectors on one file."""
  if '.tsv' in os.path.basename(file):
    pairs = evaluation.read_pairs(file)
    return {'Spearman': evaluation.score_similarity(vectors, pairs, lower)}
  questions = [*itertools.chain.from_iterable(evaluation.read_analogies(file).values())]
  return {'3CosAdd, %': evaluation.score_analogies(vectors, questions, 'add', lower=lower),
          '3CosMul, %': evaluation.score_analogies(vectors, questions, 'mul', lower=lower)}


@command()
def export_command(
    vectors: tyro.conf.Positional[str], out: tyro.conf.Positional[str] = '', output: str = '',
    form: Literal['text', 'binary', 'glove', 'fasttext'] = 'text') -> None:
  """Writes vectors in the format of another program.

  Args:
    vectors: run folder or vector file. For fastText's .bin: a word2vec or fastText run, or a .bin
      file
    out: file for the vectors
    output: same as the OUTPUT argument
    form: file format: word2vec text (same as fastText's .vec) or binary, GloVe text, or fastText
      .bin
  """
  out = options.choose_output(out, output)
  if form != 'fasttext':
    formats.save(load(vectors), out, form)
  elif storage.resolve_path(vectors).is_dir():
    fasttext_bin.save(word2vec.to_fasttext(*load_run(vectors)), out)
  else:
    fasttext_bin.save(fasttext_bin.load(vectors), out)
  print(f'vectors in {out}')


@command()
def classify_command(
    text: tyro.conf.Positional[str], out: tyro.conf.Positional[str] = '', output: str = '',
    settings: Annotated[ClassifierConfig, tyro.conf.arg(name='')] = ClassifierConfig()) -> None:
  """Trains fastText's text classifier, and writes its .bin.

  Args:
    text: training file with one text per line: labels, which begin with __label__, and words
    out: file for the classifier (.bin)
    output: same as the OUTPUT argument
    settings: settings of the classifier
  """
  out = options.choose_output(out, output)
  model = classifier.train_classifier(classifier.read_labeled_texts(text), settings)
  fasttext_bin.save(model, out)
  print(f'{len(model.labels):,} labels, {len(model.words):,} words: python -m plm_jax vectors '
        f'predict {out} FILE')


@command(top='[1, 1000000]')
def predict_command(
    model: tyro.conf.Positional[str], text: tyro.conf.Positional[str], top: int = 1) -> None:
  """Prints the most likely labels of each line, with their probabilities.

  Args:
    model: classifier: a .bin file from `classify` or from fastText's supervised
    text: file with one text per line
    top: number of labels to print
  """
  lines = read_lines(storage.resolve_path(text), 'refuse', ReadStats())
  texts = (line.split() for _, line in lines)
  for found in classifier.predict(fasttext_bin.load(model), texts, top):
    print(' '.join(f'{label} {chance:.5f}' for label, chance in found))


@command(top='[1, 1000000]')
def score_command(
    model: tyro.conf.Positional[str], text: tyro.conf.Positional[str], top: int = 1) -> None:
  """Scores a classifier on texts with labels, as fastText's `test`.

  Args:
    model: classifier: a .bin file from `classify` or from fastText's supervised
    text: file with one text per line: labels, which begin with __label__, and words
    top: number of labels to predict for each text
  """
  number, precision, recall = classifier.measure(
      fasttext_bin.load(model), classifier.read_labeled_texts(text), top)
  print(f'{number:,} texts: precision at {top} {100 * precision:.1f}, recall at {top} '
        f'{100 * recall:.1f}')
