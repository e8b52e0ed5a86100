"""python -m plm_jax vectors, and the runs that learn word vectors."""
from collections.abc import Mapping, Sequence
import os
from typing import Annotated, Any, Literal, get_args

import jax
import tyro

from plm_jax import checked, config_file, errors, storage
from plm_jax.cli import options, report
from plm_jax.cli.concluding import say, surroundings
from plm_jax.cli.options import command
from plm_jax.config import Scale
from plm_jax.data.lines import Tally, lines
from plm_jax.errors import ConfigError
from plm_jax.inference.samples import Sample
from plm_jax.recipes import word_vectors
from plm_jax.storage import reachable
from plm_jax.vectors import classifier, exchange, fasttext_bin, formats, load, measure
from plm_jax.vectors.classifier import Classifier
from plm_jax.vectors.train import Result, VectorRun, restored, train

SHOWN = 8  # words whose neighbours a report has
COMMON = 100  # most frequent words, which are passed over there: they are near everything


def start(name: str, args: Sequence[str]) -> None:
  """Runs the recipe of a name with the command line's changes; exits with 1 and a message on bad input, with 75 where a
  signal has stopped it."""
  with errors.shown():
    errors.ended(run(parse(name, args)).finished)


def parse(name: str, args: Sequence[str]) -> VectorRun:
  """Returns the recipe at the scale that the arguments name, with the fields that they change."""
  scale: Any = options.value_of('--scale', list(args)) or 'paper'
  if scale not in get_args(Scale):
    raise ConfigError(f'--scale is paper, laptop or test, got {checked.shortened(scale)}')
  default = word_vectors.recipe(name, scale)
  with checked.later():
    return tyro.cli(
        VectorRun, default=default, args=options.normalise_booleans(args, options.booleans_of(default)),
        prog=f'python -m plm_jax train {name}', description=word_vectors.__doc__,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff))


def run(config: VectorRun) -> Result:
  """Does one run, from its text to its report."""
  checked.check(config)
  reachable.check_reachable({**dict.fromkeys(reachable.paths_in(config_file.to_json(config)), 'read'),
                             config.folder: 'run'})
  if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
    jax.config.update('jax_compilation_cache_dir', str(storage.cache_folder() / 'xla'))
  say(f'{config.name}: {config.train.epochs} epochs, output in {config.folder}')
  result = train(config)
  if not result.finished:
    say(f'stopped by a signal at call {result.step:,} and saved: the same command goes on from there')
    return result
  vectors = result.vectors
  headline = {'Held-out loss': f'{result.heldout["loss"]:.4f}'} if result.heldout else {}
  headline |= {'Words': f'{len(vectors):,}', 'Width': f'{vectors.matrix.shape[1]}',
               'Learned from, a second': f'{result.per_second:,.0f}',
               'Duration of this process': f'{result.seconds / 60:.1f} min'}
  asked = vectors.words[COMMON:COMMON + SHOWN] or vectors.words[:SHOWN]
  samples = [Sample(word, ' '.join(near for near, _ in vectors.nearest(word, top=5))) for word in asked]
  path = report.write_report(config.folder, report.Summary(
      title=config.name, headline=headline, samples=samples, config=config_file.to_json(config),
      environment=surroundings()))
  print()
  for name, value in headline.items():
    print(f'{name + ":":34}{value}')
  for sample in samples:
    print(f'{sample.prompt} ⟶ {sample.text}')
  print(f'\nreport: {path}\nmore:   python -m plm_jax vectors nearest {config.folder} WORD')
  return result


@command(top='[1, 1000000]')
def nearest_command(
    vectors: tyro.conf.Positional[str], words: tyro.conf.Positional[tuple[str, ...]],
    away: tuple[str, ...] = (), top: int = 10) -> None:
  """Prints the words nearest to a word, or to the mean direction of several.

  Args:
    vectors: folder of a run, or a file of word2vec's, GloVe's or fastText's
    words: asked about
    away: words from whose direction to go away
    top: words to print
  """
  if not words:
    raise ConfigError('there is no word: give one or more')
  for word, cosine in load(vectors).nearest(words, away, top):
    print(f'{cosine:7.4f}  {word}')


@command(top='[1, 1000000]')
def analogy_command(
    vectors: tyro.conf.Positional[str], a: tyro.conf.Positional[str], b: tyro.conf.Positional[str],
    c: tyro.conf.Positional[str], how: Literal['add', 'mul'] = 'add', top: int = 5) -> None:
  """Prints answers to: A is to B as C is to what?

  Args:
    vectors: folder of a run, or a file
    a: as man
    b: as king
    c: as woman
    how: 3CosAdd or 3CosMul
    top: words to print
  """
  for word, score in load(vectors).analogy(a, b, c, how, top):
    print(f'{score:7.4f}  {word}')


@command()
def measure_command(
    vectors: tyro.conf.Positional[str], files: tyro.conf.Positional[tuple[str, ...]],
    lower: bool = True) -> None:
  """Prints how well vectors do on word similarities (Spearman's correlation) and analogies (3CosAdd and 3CosMul).

  Args:
    vectors: folder of a run, or a file
    files: pairs of words with a score between tabs (.tsv), or analogies, four words a line; .gz and .xz too
    lower: their words in lower case
  """
  if not files:
    raise ConfigError('there is no file with pairs or analogies: give one or more')
  found = load(vectors)
  print(f'{"file":34}{"measure":14}{"value":>8}  questions')
  for file in files:
    name = os.path.basename(file)
    for how, score in scores(found, file, lower).items():
      print(f'{name:34}{how:14}{score.value:>8.2f}  {score.answered:,} of {score.asked:,}')


def scores(vectors, file: str, lower: bool) -> Mapping[str, measure.Score]:
  """Measures vectors on one file."""
  if '.tsv' in os.path.basename(file):
    return {'Spearman': measure.similarity(vectors, measure.read_pairs(file), lower)}
  questions = [words for section in measure.read_analogies(file).values() for words in section]
  return {'3CosAdd, %': measure.analogies(vectors, questions, 'add', lower=lower),
          '3CosMul, %': measure.analogies(vectors, questions, 'mul', lower=lower)}


@command()
def export_command(
    vectors: tyro.conf.Positional[str], out: tyro.conf.Positional[str],
    form: Literal['text', 'binary', 'glove', 'fasttext'] = 'text') -> None:
  """Writes vectors as other programs read them.

  Args:
    vectors: folder of a run, or a file; as fastText's .bin a run of word2vec or fastText, or a .bin
    out: file
    form: word2vec's text (fastText's .vec is the same) or binary, GloVe's text, or fastText's .bin
  """
  if form != 'fasttext':
    formats.save(load(vectors), out, form)
  elif storage.path_of(vectors).is_dir():
    fasttext_bin.save(exchange.fasttext_of(*restored(vectors)), out)
  else:
    fasttext_bin.save(fasttext_bin.load(vectors), out)
  print(f'vectors in {out}')


@command()
def classify_command(
    text: tyro.conf.Positional[str], out: tyro.conf.Positional[str],
    settings: Annotated[Classifier, tyro.conf.arg(name='')] = Classifier()) -> None:
  """Learns fastText's classifier of texts, and writes its .bin.

  Args:
    text: file of lines with labels, words that begin with __label__, and other words
    out: .bin file
    settings: how
  """
  model = classifier.learn(classifier.read(text), settings)
  fasttext_bin.save(model, out)
  print(f'{len(model.labels):,} labels, {len(model.words):,} words: python -m plm_jax vectors predict {out} FILE')


@command(top='[1, 1000000]')
def predict_command(model: tyro.conf.Positional[str], text: tyro.conf.Positional[str], top: int = 1) -> None:
  """Prints the likeliest labels of each line, and their probabilities.

  Args:
    model: .bin of `classify`, or of fastText's supervised
    text: file of lines
    top: labels to print
  """
  texts = (line.split() for _, line in lines(storage.path_of(text), 'refuse', Tally()))
  for found in classifier.predict(fasttext_bin.load(model), texts, top):
    print(' '.join(f'{label} {chance:.5f}' for label, chance in found))


COMMANDS = {'nearest': nearest_command, 'analogy': analogy_command, 'measure': measure_command,
            'export': export_command, 'classify': classify_command, 'predict': predict_command}


def main(args: Sequence[str]) -> None:
  """Runs `vectors COMMAND ...`; exits with 1 and a message on bad input."""
  with errors.shown():
    reachable.check_reachable(dict.fromkeys(reachable.paths_in([*args]), 'read'))
    with checked.later():
      tyro.extras.subcommand_cli_from_dict(
          COMMANDS, prog='python -m plm_jax vectors', args=options.normalise_booleans(args, {'lower'}),
          config=(tyro.conf.FlagConversionOff,))
