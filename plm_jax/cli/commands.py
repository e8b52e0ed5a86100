"""python -m plm_jax: what is done with text before a run, and with a run afterwards."""
import json
import math
import shlex
import sys
from typing import Annotated, Literal

import tyro

from plm_jax import api, checked, conversion, corpus, errors, recipes, storage
from plm_jax.cli import (
  applied,
  babylm,
  beside,
  cleaning,
  compared,
  doctor,
  finetune,
  inspection,
  knowledge,
  options,
  pairs,
  probing,
  vectors,
  verify,
  watching,
)
from plm_jax.cli import run as runs
from plm_jax.cli.options import command
from plm_jax.config import ConfigError
from plm_jax.conversion import peft
from plm_jax.corpora.examine import CleanConfig
from plm_jax.data import sources
from plm_jax.data.settings import PrepareConfig, TextConfig
from plm_jax.data.windows import Assembly, Windows
from plm_jax.evaluation import few_shot, scoring, text_to_text
from plm_jax.evaluation.few_shot import FewShotConfig
from plm_jax.evaluation.text_to_text import ReadingConfig
from plm_jax.inference import generate
from plm_jax.inference.loading import Trained, with_adapter
from plm_jax.inference.search import GenerationConfig
from plm_jax.sharding import MeshConfig
from plm_jax.storage import reachable
from plm_jax.training import growth


@command()
def train_command() -> None:
  """Trains a model by a recipe: `train RECIPE`, with --help for what it is and its options. Alone, lists recipes."""
  print(recipes.listed())


@command()
def doctor_command() -> None:
  """Says before a run what will be and what is wrong: `doctor [RECIPE and options of a run]`, with --help for more."""
  doctor.start(['--help'])


@command()
def inspect_command() -> None:
  """Shows what a run will give its model: `inspect RECIPE [options]` or `inspect finetune ...`; --help for more."""
  inspection.start(['--help'])


@command()
def finetune_command() -> None:
  """Teaches a model a task: `finetune --init=FOLDER --task=NAME`, with --help for what there is."""
  finetune.start(args=['--help'])


@command()
def babylm_command() -> None:
  """From the text of a BabyLM track to a table of what a model of it can do: `babylm --data=TEXT --output=FOLDER`."""
  babylm.start(['--help'])


@command()
def vectors_command() -> None:
  """Asks word vectors for neighbours and analogies, measures them, writes them for others: `vectors COMMAND`."""
  vectors.main(['--help'])


@command(vocab=PrepareConfig.limits['vocab'])
def prepare_command(
    source: tyro.conf.Positional[str], out: tyro.conf.Positional[str],
    recipe: Annotated[str, tyro.conf.arg(name='for')] = '', vocab: int = PrepareConfig.vocab, beam: str = '',
    settings: Annotated[TextConfig, tyro.conf.arg(name='')] = TextConfig()) -> None:
  """Writes the token records of a corpus.

  Args:
    source: text files, globs, folders (local or gs://), by commas; .txt, .jsonl, .gz, .xz; tfds:NAME[:SPLIT]; embedded
    out: folder for the records, local or gs://
    recipe: take the tokenizer and the settings of this recipe, such as gpt2_small; other options change them
    vocab: pieces of the tokenizer to train
    beam: work with Apache Beam; what is behind it are options of Beam: --beam --runner=FlinkRunner ...
    settings: how
  """
  # The settings of a recipe stand in front of the other options: see `settings_of`.
  corpus.prepare(source, out, recipe, beam=shlex.split(beam), vocab=vocab, **vars(settings))
  print(f'records in {out}: train on them with --data.path={out}')


def settings_of(recipe: str) -> list[str]:
  """Returns the options of `prepare` for text as a recipe takes it."""
  given = corpus.settings_of(recipe).items()
  return [f'{checked.flag(name)}={value}' for name, value in given if value != getattr(TextConfig, name, None)]


@command(length='[3, 16777216]', batch='[1, 16777216]')
def rows_command(records: tyro.conf.Positional[str], length: int = 512, batch: int = 256) -> None:
  """Prints how full rows are under each assembly, and how many rows have as many tokens as a batch of 'sentences'.

  Args:
    records: folder of token records
    length: tokens in a row, two special ones included
    batch: rows of 'sentences' in an update
  """
  print(f'{"assembly":12}{"rows":>14}{"tokens a row":>14}{"full":>8}{"batch":>8}')
  fill = {assembly: rows_of(records, length - 2, assembly) for assembly in ('packed', 'sentences', 'document')}
  for assembly, (rows, tokens) in fill.items():
    print(f'{assembly:12}{rows:>14,}{tokens:>14.1f}{tokens / (length - 2):>8.1%}'
          f'{round(batch * fill["sentences"][1] / tokens):>8,}')


def rows_of(records: str, length: int, assembly: Assembly) -> tuple[int, float]:
  """Counts the windows of the training split, and their tokens on average."""
  windows = Windows(records, 'train', length, assembly)
  return len(windows), windows.meta.tokens('train') / len(windows)


@command(top='[1, 16777216]')
def fill_mask_command(
    run: tyro.conf.Positional[str], prompts: tyro.conf.Positional[tuple[str, ...]], top: int = 5) -> None:
  """Prints the likeliest words for every [MASK], or what a GLM writes there, [sMASK] and [gMASK] too.

  Args:
    run: folder of a run, or of a checkpoint of transformers or of the original TensorFlow code
    prompts: sentences, each with one or more [MASK]
    top: candidates to print
  """
  if not prompts:
    raise ConfigError('there is no prompt: give a sentence with a [MASK] where a word is to be guessed')
  for prompt, found in zip(prompts, api.fill_mask(run, prompts, top), strict=True):
    print(prompt)
    for number, candidates in enumerate(found, 1):
      if len(found) > 1 and len(candidates) > 1:
        print(f'  [MASK] {number}')
      for piece, probability in candidates:
        print(f'  {piece}' if math.isnan(probability) else f'  {probability:7.2%}  {piece}')


@command(seed=options.SEED)
def generate_command(
    run: tyro.conf.Positional[str], prompts: tyro.conf.Positional[tuple[str, ...]] = (), file: str = '',
    stream: bool = False, seed: int = 0, mesh: MeshConfig = MeshConfig(1),
    settings: Annotated[GenerationConfig, tyro.conf.arg(name='')] = GenerationConfig()) -> None:
  """Continues texts; an encoder-decoder reads them and writes others.

  Args:
    run: folder of a run, or of a checkpoint of transformers
    prompts: beginnings of texts, '' for a text from its first word; or what an encoder reads
    file: more prompts, one a line; - for standard input
    stream: print the text as it comes, for one prompt
    seed: of draws, with --temperature
    mesh: devices that share the model
    settings: how
  """
  if file:
    prompts += tuple((sys.stdin.read() if file == '-' else storage.read_text(file)).splitlines())
  if not prompts:
    raise ConfigError("there is no prompt: give one, --file, or '' for a text from its first word")
  print_continuations(applied.shared(run, mesh), prompts, stream, seed, settings)


def print_continuations(
    trained: Trained, prompts: tuple[str, ...], stream: bool, seed: int, settings: GenerationConfig) -> None:
  """Prints texts with their prompts, or token by token, and on stderr how many no stop sequence ended."""
  ended = []
  if stream:
    if len(prompts) * settings.number > 1:
      raise ConfigError('--stream prints one text: give one prompt, and no --number')
    print(prompts[0] if generate.continues(trained) else '', end='', flush=True)
    for piece in api.stream(trained, prompts[0], settings, seed):
      print(piece.text, end='', flush=True)
      ended = [piece.ended]
    print()
  else:
    every = api.generate(trained, prompts, settings, seed)
    for prompt, found in zip(prompts, every, strict=True):
      for continuation in found:
        print(f'{prompt if generate.continues(trained) else ""}{continuation.text}\n')
    ended = [continuation.ended for found in every for continuation in found]
  if settings.stop and (without := len(ended) - ended.count('stop')):
    print(f'no stop sequence came in {without} of {len(ended)}: ended by the model, or at {settings.max_new} tokens',
          file=sys.stderr)


@command()
def export_command(
    run: tyro.conf.Positional[str], out: tyro.conf.Positional[str],
    dtype: Literal['float32', 'float16', 'bfloat16', 'same'] = 'same', adapter: bool = False) -> None:
  """Writes a checkpoint that transformers loads, with its tokenizer; or an adapter that peft loads.

  Args:
    run: folder of a run, or of a checkpoint of transformers or of the original TensorFlow code
    out: folder for the checkpoint, local or in a bucket, not there yet
    dtype: of the tensors; same: float32, or what the checkpoint had
    adapter: of a run with --tuning.adapter.kind: only what was trained, beside the base model that it began with
  """
  if adapter:
    config, params = with_adapter(run)
    base = config.warm_start if conversion.is_checkpoint(config.warm_start) else ''
    peft.save(out, config.family, config.model, params, config.tuning.adapter, base)
    print(f'adapter in {out}: peft loads it with PeftModel.from_pretrained(base, {out!r}), where base is the model '
          f'that the run began with{": " + base if base else ", exported"}')
    return
  done = api.export(run, out, None if dtype == 'same' else dtype)
  if done.lost:
    print(f'left out, as transformers has no such head for this model: {", ".join(done.lost)}')
  print(f'checkpoint in {out}: {done.how}')


@command(words='[1, 1000000]', least='[1, inf)')
def grow_command(
    run: tyro.conf.Positional[str], text: tyro.conf.Positional[str], out: tyro.conf.Positional[str],
    words: int = 1000, least: int = 5) -> None:
  """Writes a checkpoint whose vocabulary has the words of a domain besides, for --warm-start.

  Args:
    run: folder of a run, or of a checkpoint, with a WordPiece tokenizer
    text: the domain's: files, globs, folders
    out: folder for the checkpoint, not there yet
    words: added at most: the most frequent that are split into pieces
    least: how often a word comes at least
  """
  trained = api.load(run)
  found = growth.new_words(sources.texts(text), growth.wordpiece_of(trained), words, least)
  grown = growth.grown(trained, found)
  api.export(grown, out)
  print(f'{len(found)} words more, {", ".join(found[:5])}{", ..." if len(found) > 5 else ""}: '
        f'give --warm-start={out} --model.vocab={grown.model.vocab}')


@command()
def evaluate_command(
    run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]] = (),
    path: Annotated[tuple[str, ...], tyro.conf.arg(name='data.path')] = (), batches: int = 0,
    mesh: MeshConfig = MeshConfig()) -> None:
  """Prints how well a run does what it has learned, on its own held-out text or on any other.

  Args:
    run: folder of a run
    texts: corpora, as --data.path of a run takes them; of folders of records the held-out part; none: those of the run
    path: more of them
    batches: batches that are read of each; 0: of the run's own text as many as in its evaluations, of others all
    mesh: devices that share the rows, and a large model
  """
  runs.evaluate(run, (*texts, *path), batches, mesh)


def scorer_of(checkpoint: str, start: bool, mesh: MeshConfig) -> scoring.Scorer:
  """Loads what scores texts, on the devices of the mesh."""
  trained = api.load(checkpoint, mesh)
  return scoring.of(trained, start, trained.mesh)


@command()
def perplexity_command(
    checkpoint: tyro.conf.Positional[str], text: tyro.conf.Positional[str], length: int = 0, stride: int = 0,
    start: bool = True, mesh: MeshConfig = MeshConfig()) -> None:
  """Prints how well a language model predicts a text, by a window that slides over it.

  Args:
    checkpoint: folder of a run, or of a checkpoint of transformers
    text: files and globs, by commas, each a text of its own; of .jsonl each line; embedded; or tfds:NAME:SPLIT
    length: tokens in a window; 0: as many as the model reads
    stride: tokens between the beginnings of windows; 0: half of the length
    start: a text begins with the token that begins texts in training; without it its first token is given
    mesh: devices that share the rows, and a large model
  """
  found = api.perplexity(api.load(checkpoint, mesh), text, length, stride, start)
  print(f'{found.tokens:,} tokens, {found.words:,} words, {found.bytes:,} bytes')
  for name, value in (('perplexity a token', found.per_token), ('perplexity a word', found.per_word),
                      ('perplexity a byte', found.per_byte), ('bits a byte', found.bits_per_byte)):
    print(f'{name:20}{value:>14,.4f}')


@command()
def few_shot_command(
    checkpoint: tyro.conf.Positional[str], task: tyro.conf.Positional[Literal[tuple(few_shot.TASKS)]],  # pyright: ignore
    output: str = '', start: bool = True, mesh: MeshConfig = MeshConfig(),
    settings: Annotated[FewShotConfig, tyro.conf.arg(name='')] = FewShotConfig()) -> None:
  """Prints how well a language model does a task that it is asked in words.

  Args:
    checkpoint: folder of a run, or of a checkpoint of transformers
    task: what is asked
    output: .jsonl file for the predictions
    start: a text begins with the token that begins texts in training
    mesh: devices that share the rows, and a large model
    settings: how
  """
  reachable.check_reachable({output: 'write'})
  examples, pool = settings.questions(task)
  result = few_shot.evaluate(
      settings.task(task), scorer_of(checkpoint, start, mesh), examples, settings.shots, pool, settings.seed)
  print(f'{task}, {settings.shots} shots, {len(result.predictions):,} questions')
  print(f'accuracy          {result.accuracy:8.2%}  +- {result.error:.2%}')
  print(f'guessing          {result.chance:8.2%}' if result.chance else
        f'perplexity        {result.perplexity:8.2f}  of the word')
  print(f'most frequent     {result.majority:8.2%}')
  if result.cut:
    print(f'{result.cut:,} prompts were too long and lost their beginning')
  if output:
    lines = (json.dumps(few_shot.record(prediction), ensure_ascii=False) for prediction in result.predictions)
    storage.write(output, '\n'.join(lines) + '\n')
    print(f'predictions in {output}')


@command()
def text_to_text_command(
    checkpoint: tyro.conf.Positional[str], task: tyro.conf.Positional[str], output: str = '',
    mesh: MeshConfig = MeshConfig(1), reading: Annotated[ReadingConfig, tyro.conf.arg(name='')] = ReadingConfig(),
    settings: Annotated[GenerationConfig, tyro.conf.arg(name='')] = GenerationConfig()) -> None:
  """Prints how well an encoder-decoder does a task that it answers in words.

  Args:
    checkpoint: folder of a run, or of a checkpoint of transformers
    task: task:NAME:SOURCE, NAME as in plm_jax/data/examples.py, SOURCE .jsonl or .tsv (plain, .gz, .xz) or
      tfds:NAME:SPLIT
    output: .jsonl file for the predictions
    mesh: devices that share the model
    reading: of the examples
    settings: how the answers are written
  """
  reachable.check_reachable({output: 'write'})
  trained = applied.shared(checkpoint, mesh)
  with api.on(trained):
    result = text_to_text.evaluate(trained, task, settings, reading)
  print(f'{task}, {len(result.predictions):,} examples')
  for name, value in result.metrics.items():
    print(f'{name:18}{value:8.2f}')
  if result.cut:
    print(f'{result.cut:,} inputs were longer than {reading.length} tokens and lost their ends')
  if output:
    lines = (json.dumps({'where': example.where, 'inputs': example.inputs, 'targets': example.targets, 'text': text},
                        ensure_ascii=False) for example, text in result.predictions)
    storage.write(output, '\n'.join(lines) + '\n')
    print(f'predictions in {output}')


COMMANDS = {
    'doctor': doctor_command, 'inspect': inspect_command, 'clean': cleaning.clean_command,
    'prepare': prepare_command, 'train': train_command, 'finetune': finetune_command,
    'rows': rows_command, 'evaluate': evaluate_command, 'fill-mask': fill_mask_command, 'export': export_command,
    'generate': generate_command, 'perplexity': perplexity_command, 'few-shot': few_shot_command,
    'minimal-pairs': pairs.minimal_pairs_command, 'probe': probing.probe_command,
    'attention': probing.attention_command, 'losses': knowledge.losses_command,
    'neighbours': knowledge.neighbours_command,
    'text-to-text': text_to_text_command, 'verify': verify.verify_command, 'grow': grow_command,
    'predict': applied.predict_command, 'answer': applied.answer_command, 'tag': applied.tag_command,
    'encode': applied.encode_command, 'vectors': vectors_command, 'similar': compared.similar_command,
    'search': compared.search_command, 'compare': beside.compare_command, 'watch': watching.watch_command,
    'distil': compared.distil_command, 'babylm': babylm_command}


def main() -> None:
  """Runs the command that sys.argv names. What a user can mend ends it with status 1 and one line."""
  args = sys.argv[1:]
  if args[:1] == ['train'] and args[1:] and not args[1].startswith('-'):  # its options are known when the recipe is
    runs.start(args[1], args[2:])
    return
  # Options of these are known when a recipe, a task or a command of theirs is.
  own = {'doctor': doctor.start, 'inspect': inspection.start, 'vectors': vectors.main,
         'finetune': lambda rest: finetune.start(args=rest), 'babylm': babylm.start}
  if args and args[0] in own:
    own[args[0]](args[1:])
    return
  with errors.shown():
    reachable.check_reachable(dict.fromkeys(reachable.paths_in(args), 'read'))
    if args[:1] == ['prepare']:
      args = options.beam_joined(args, {'for', *PrepareConfig.__dataclass_fields__})
    if args[:1] == ['prepare'] and (recipe := options.value_of('--for', args)):
      args = ['prepare', *settings_of(recipe), *args[1:]]
    if args[:1] == ['clean']:
      args = options.beam_joined(args, {'rules', *CleanConfig.__dataclass_fields__})
    if args[:1] == ['clean'] and (rules := options.value_of('--rules', args)):
      args = ['clean', *cleaning.settings_of(rules), *args[1:]]
    booleans = {'start', 'stream', 'pack', 'cut', 'once', *options.booleans_of(TextConfig()),
                *options.booleans_of(CleanConfig()), *options.booleans_of(GenerationConfig())}
    with checked.later():
      tyro.extras.subcommand_cli_from_dict(
          COMMANDS, prog='python -m plm_jax', args=options.normalise_booleans(args, booleans),
          config=(tyro.conf.FlagConversionOff,))
