"""Define the commands of `python -m plm_jax` and dispatch to them."""
from collections.abc import Callable, Sequence
import math
import shlex
import sys
from typing import Annotated, Literal

import tyro

from plm_jax import conversion, environment, errors, recipes, storage, validation
from plm_jax.api import corpus, models
from plm_jax.cli import (
  babylm,
  catalog,
  clean,
  compare,
  doctor,
  finetune,
  generation,
  inspect,
  knowledge,
  minimal_pairs,
  options,
  output_files,
  predict,
  probing,
  show,
  similarity,
  vectors,
  verify,
  watch,
)
from plm_jax.cli import run as run_command
from plm_jax.cli.options import command
from plm_jax.config.run import ConfigError, Scale
from plm_jax.conversion import peft
from plm_jax.corpora.filter_documents import RULE_SETS, CleanConfig
from plm_jax.data import sources
from plm_jax.data.prepare_config import TOKENIZER_OPTIONS, PrepareConfig, TextConfig
from plm_jax.data.windows import Assembly, Windows
from plm_jax.evaluation import few_shot, scoring
from plm_jax.evaluation.few_shot import FewShotConfig
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import read_adapter_run
from plm_jax.runs import run as run_lib
from plm_jax.sharding import MeshConfig
from plm_jax.storage import bucket_check
from plm_jax.training import vocabulary_expansion


@command()
def train_command() -> None:
  """Trains a model: `train RECIPE`; --help for its options. Without a recipe, lists all recipes."""
  # `main` handles `train RECIPE`.
  print(recipes.list_recipes())


@command()
def doctor_command() -> None:
  """Checks machine, options, text and output folder of a run: `doctor [RECIPE [options]]`."""
  doctor.start(['--help'])


@command()
def inspect_command() -> None:
  """Shows the model inputs of a run: `inspect RECIPE [options]` or `inspect finetune [options]`."""
  inspect.start(['--help'])


@command()
def show_command() -> None:
  """Shows options, layers, parameters, schedule and mesh of a recipe: `show RECIPE [options]`."""
  show.start(['--help'])


@command()
def finetune_command() -> None:
  """Fine-tunes a model on a task: `finetune --init=FOLDER --task=NAME`; --help lists the tasks."""
  finetune.start(args=['--help'])


@command()
def babylm_command() -> None:
  """Trains and evaluates a model of a BabyLM track: `babylm --data=TEXT --output=FOLDER`."""
  babylm.start(['--help'])


@command()
def vectors_command() -> None:
  """Queries, evaluates and exports word vectors: `vectors COMMAND`."""
  vectors.main(['--help'])


@command(vocab=PrepareConfig.limits['vocab'])
def prepare_command(
    source: tyro.conf.Positional[str], out: tyro.conf.Positional[str] = '', output: str = '',
    recipe: Annotated[str, tyro.conf.arg(name='for')] = '', scale: Scale = 'paper',
    vocab: int = PrepareConfig.vocab, beam: str = '',
    settings: Annotated[TextConfig, tyro.conf.arg(name='')] = TextConfig()) -> None:
  """Tokenizes a corpus into token records.

  Args:
    source: files, globs or folders (local or gs://), separated by commas: plain text, JSON Lines,
      tables and other formats, plain or compressed; tfds:NAME[:SPLIT]; or embedded, the built-in
      corpus
    out: folder for the records, local or gs://
    output: same as the OUTPUT argument
    recipe: recipe that will read the records, such as gpt2_small: it sets the tokenizer and other
      options, unless they are given. Default: records for BERT
    scale: scale of the run that will read the records; with --for, it sets the vocabulary size
    vocab: vocabulary size of the new tokenizer; --for and --scale change this default
    beam: use Apache Beam; all options after --beam are passed to Beam: --beam --runner=FlinkRunner
      ...
    settings: how text becomes token records
  """
  out = options.choose_output(out, output)
  # `main` has put the settings of a recipe in front of the options: see `recipe_options`.
  chosen = {**vars(settings), 'vocab': vocab}
  if settings.tokenizer:
    chosen = {name: value for name, value in chosen.items() if name not in TOKENIZER_OPTIONS}
  corpus.prepare(source, out, recipe, scale, beam=shlex.split(beam), **chosen)
  print(f'records in {out}: train on them with --data.path={out}')


def recipe_options(recipe: str, scale: Scale) -> list[str]:
  """Return the options of `prepare` for a recipe, as the command line takes them."""
  found = []
  for name, value in corpus.recipe_settings(recipe, scale).items():
    if value != getattr(TextConfig, name, None):
      found.append(f'{validation.flag_name(name)}={value}')
  return found


@command(length='[3, 16777216]', batch='[1, 16777216]')
def packing_command(
    records: tyro.conf.Positional[str], length: int = 512, batch: int = 256) -> None:
  """Compares how well each packing strategy fills sequences, and batch sizes with equal tokens.

  Args:
    records: folder of token records
    length: sequence length in tokens, including two special tokens
    batch: batch size for the `sentences` strategy; the table shows the batch sizes of the other
      strategies with the same number of tokens
  """
  print(f'{"assembly":12}{"rows":>14}{"tokens per row":>15}{"full":>8}{"batch":>8}')
  strategies: tuple[Assembly, ...] = ('packed', 'sentences', 'document')
  fill = {assembly: count_rows(records, length - 2, assembly) for assembly in strategies}
  for assembly, (rows, tokens) in fill.items():
    print(f'{assembly:12}{rows:>14,}{tokens:>15.1f}{tokens / (length - 2):>8.1%}'
          f'{round(batch * fill["sentences"][1] / tokens):>8,}')


def count_rows(records: str, length: int, assembly: Assembly) -> tuple[int, float]:
  """Count the windows of the training split, and their mean number of tokens."""
  windows = Windows(records, 'train', length, assembly)
  return len(windows), windows.meta.tokens('train') / len(windows)


@command(top='[1, 16777216]')
def fill_mask_command(
    run: tyro.conf.Positional[str], prompts: tyro.conf.Positional[tuple[str, ...]], top: int = 5
) -> None:
  """Prints the most likely tokens for every [MASK]; a GLM fills [sMASK] and [gMASK], too.

  Args:
    run: run folder, transformers checkpoint or original TensorFlow checkpoint
    prompts: sentences with one or more [MASK], whatever the mask token of the model is; - reads one
      sentence per line from standard input
    top: number of candidates to print per [MASK]
  """
  prompts = predict.read_prompts(prompts)
  if not prompts:
    raise ConfigError('there is no prompt: give a sentence with a [MASK] in place of the word to '
                      'predict')
  for prompt, found in zip(prompts, models.fill_mask(run, prompts, top), strict=True):
    print(prompt)
    for number, candidates in enumerate(found, 1):
      if len(found) > 1 and len(candidates) > 1:
        print(f'  [MASK] {number}')
      for token, probability in candidates:
        share = '' if math.isnan(probability) else f'{probability:7.2%}  '
        print(f'  {share}{token}')


@command()
def export_command(
    run: tyro.conf.Positional[str], out: tyro.conf.Positional[str] = '', output: str = '',
    dtype: Literal['float32', 'float16', 'bfloat16', 'same'] = 'same', adapter: bool = False
) -> None:
  """Writes a checkpoint that transformers loads, with its tokenizer; or an adapter that peft loads.

  Args:
    run: run folder, transformers checkpoint or original TensorFlow checkpoint
    out: folder for the checkpoint, local or gs://; it must not exist yet
    output: same as the OUTPUT argument
    dtype: dtype of the tensors. same: keep the dtype of the input (float32 for a run)
    adapter: write only the adapter, without the base model, for peft; for runs with
      --tuning.adapter.kind
  """
  out = options.choose_output(out, output)
  if adapter:
    config, params = read_adapter_run(run)
    base = config.warm_start if conversion.is_checkpoint(config.warm_start) else ''
    peft.save_adapter(out, config.family, config.model, params, config.tuning.adapter, base)
    model = f': {base}' if base else ', exported'
    print(f'adapter in {out}: peft loads it with PeftModel.from_pretrained(base, {out!r}), where '
          f'base is the model that the run began with{model}')
    return
  done = models.export(run, out, None if dtype == 'same' else dtype)
  if done.lost:
    print('left out, as transformers has no such head for this model: ' + ', '.join(done.lost))
  print(f'checkpoint in {out}: {done.how}')
  if (storage.resolve_path(out) / 'README.md').exists():
    print(f'model card in {out}/README.md: add language and license before you publish it')


@command(words='[1, 1000000]', least='[1, inf)')
def expand_vocab_command(
    run: tyro.conf.Positional[str], text: tyro.conf.Positional[str],
    out: tyro.conf.Positional[str] = '', output: str = '', words: int = 1000, least: int = 5
) -> None:
  """Writes a checkpoint with words of a domain added to its vocabulary (vocabulary expansion).

  Args:
    run: run folder or checkpoint with a WordPiece tokenizer
    text: text of the domain: files, globs or folders
    out: folder for the checkpoint, for --warm-start; it must not exist yet
    output: same as the OUTPUT argument
    words: maximum number of words to add: the most frequent words that the tokenizer splits into
      several tokens
    least: minimum frequency of an added word
  """
  out = options.choose_output(out, output)
  trained = models.load(run)
  tokenizer = vocabulary_expansion.require_wordpiece(trained)
  found = vocabulary_expansion.find_new_words(sources.read_texts(text), tokenizer, words, least)
  grown = vocabulary_expansion.expand_vocabulary(trained, found)
  models.export(grown, out)
  listed = ', '.join(found[:5]) + (', ...' if len(found) > 5 else '')
  print(f'{len(found)} words more, {listed}: give --warm-start={out} '
        f'--model.vocab={grown.model.vocab}')


@command()
def evaluate_command(
    run: tyro.conf.Positional[str], texts: tyro.conf.Positional[tuple[str, ...]] = (),
    path: Annotated[tuple[str, ...], tyro.conf.arg(name='data.path')] = (), batches: int = 0,
    mesh: MeshConfig = MeshConfig()) -> None:
  """Prints the held-out metrics of a run, on its own held-out text or on other text.

  Args:
    run: run folder
    texts: corpora, in any form that --data.path accepts. For a folder of records, the held-out
      split is evaluated. Default: the held-out text of the run
    path: same as TEXT
    batches: number of batches per corpus. 0: all batches of other text; for the held-out text of
      the run, as many as its evaluations during training used
    mesh: devices over which the batch, or a large model, is split
  """
  run_lib.evaluate_folder(run, (*texts, *path), batches, mesh)


def load_scorer(checkpoint: str, start: bool, mesh: MeshConfig) -> scoring.Scorer:
  """Load a model on the mesh and return its scorer of texts."""
  trained = models.load(checkpoint, mesh)
  return scoring.make_scorer(trained, start, trained.mesh)


@command()
def perplexity_command(
    checkpoint: tyro.conf.Positional[str], text: tyro.conf.Positional[str], length: int = 0,
    stride: int = 0, start: bool = True, mesh: MeshConfig = MeshConfig()) -> None:
  """Prints the perplexity of texts under a decoder, measured by a sliding window.

  Args:
    checkpoint: run folder or transformers checkpoint
    text: files and globs, separated by commas: each file is one text, or each line of a .jsonl
      file; embedded, the built-in corpus; or tfds:NAME:SPLIT
    length: window size in tokens. 0: the maximum sequence length of the model
    stride: number of tokens from the start of one window to the start of the next. 0: half of
      --length
    start: start each text with the start token, as in training. Without it, the first token of a
      text is not predicted
    mesh: devices over which the batch, or a large model, is split
  """
  found = models.perplexity(models.load(checkpoint, mesh), text, length, stride, start)
  print(f'{found.tokens:,} tokens, {found.words:,} words, {found.bytes:,} bytes')
  values = {
      'perplexity per token': found.per_token, 'perplexity per word': found.per_word,
      'perplexity per byte': found.per_byte, 'bits per byte': found.bits_per_byte}
  for name, value in values.items():
    print(f'{name:21}{value:>14,.4f}')


@command()
def few_shot_command(
    checkpoint: tyro.conf.Positional[str],
    task: tyro.conf.Positional[Literal[tuple(few_shot.TASKS)]],  # pyright: ignore
    output: str = '', start: bool = True, mesh: MeshConfig = MeshConfig(),
    settings: Annotated[FewShotConfig, tyro.conf.arg(name='')] = FewShotConfig()) -> None:
  """Evaluates a language model on a task with zero-shot or few-shot prompts.

  Args:
    checkpoint: run folder or transformers checkpoint
    task: name of the task
    output: file for the predictions (.jsonl)
    start: start each text with the start token, as in training
    mesh: devices over which the batch, or a large model, is split
    settings: evaluation settings
  """
  bucket_check.check_reachable({output: 'file'})
  examples, pool = settings.questions(task)
  result = few_shot.evaluate_few_shot(
      settings.task(task), load_scorer(checkpoint, start, mesh), examples, settings.shots, pool,
      settings.seed)
  print(f'{task}, {settings.shots} shots, {len(result.predictions):,} questions')
  print(f'accuracy          {result.accuracy:8.2%}  +- {result.error:.2%}')
  if result.chance:
    print(f'guessing          {result.chance:8.2%}')
  else:
    print(f'perplexity        {result.perplexity:8.2f}  of the word')
  print(f'most frequent     {result.majority_baseline:8.2%}')
  if result.truncated_prompts:
    print(f'{result.truncated_prompts:,} prompts were too long and lost their beginning')
  if output:
    output_files.write_json_lines(output, map(few_shot.prediction_record, result.predictions))


COMMANDS = {
    'doctor': doctor_command, 'inspect': inspect_command, 'show': show_command,
    'clean': clean.clean_command, 'prepare': prepare_command, 'train': train_command,
    'finetune': finetune_command, 'packing': packing_command, 'evaluate': evaluate_command,
    'fill-mask': fill_mask_command, 'export': export_command,
    'generate': generation.generate_command,
    'perplexity': perplexity_command, 'few-shot': few_shot_command,
    'minimal-pairs': minimal_pairs.minimal_pairs_command, 'probe': probing.probe_command,
    'attention': probing.attention_command, 'losses': knowledge.losses_command,
    'neighbors': knowledge.neighbors_command, 'text-to-text': generation.text_to_text_command,
    'verify': verify.verify_command, 'expand-vocab': expand_vocab_command,
    'predict': predict.predict_command,
    'answer': predict.answer_command, 'tag': predict.tag_command, 'encode': predict.encode_command,
    'vectors': vectors_command, 'similar': similarity.similar_command,
    'search': similarity.search_command, 'compare': compare.compare_command,
    'watch': watch.watch_command, 'distill': similarity.distill_command, 'babylm': babylm_command}

# Commands that parse their own arguments: their options depend on a recipe, a task or a subcommand.
STARTS: dict[str, Callable[[Sequence[str]], None]] = {
    'doctor': doctor.start, 'inspect': inspect.start, 'show': show.start, 'vectors': vectors.main,
    'finetune': lambda args: finetune.start(args=args), 'babylm': babylm.start}


def main() -> None:
  """Run the command that sys.argv names; errors of the user end it with status 1 and one line."""
  args = sys.argv[1:]
  if args:
    args = [catalog.ALIASES.get(args[0], args[0]), *args[1:]]
  name, rest = ''.join(args[:1]), args[1:]
  args = [*args[:1], *options.rename_command_options(name, rest)]
  if name == 'train' and rest and not rest[0].startswith('-'):
    run_command.start(rest[0], rest[1:])
    return
  if name in STARTS:
    STARTS[name](rest)
    return
  with errors.exit_on_error():
    bucket_check.check_reachable(dict.fromkeys(bucket_check.find_bucket_paths(args), 'read'))
    if name == 'prepare':
      args = prepare_arguments(args)
    elif name == 'clean':
      args = options.join_values('--rules', args, RULE_SETS)
      args = options.join_beam_options(args, {'rules', *CleanConfig.__dataclass_fields__})
      if rules := options.option_value('--rules', args):
        args = ['clean', *clean.rule_options(rules), *args[1:]]
    booleans = {'adapter', 'start', 'stream', 'pack', 'cut', 'once'}
    for config in (TextConfig(), CleanConfig(), GenerationConfig()):
      booleans |= options.boolean_options(config)
    with validation.defer_checks():
      tyro.extras.subcommand_cli_from_dict(
          COMMANDS, prog=environment.program(), args=options.normalize_booleans(args, booleans),
          config=(tyro.conf.FlagConversionOff,))


def prepare_arguments(args: list[str]) -> list[str]:
  """Return the arguments of `prepare`, with the options of its recipe in front.

  Raises:
    ConfigError: options of a new tokenizer together with --tokenizer, or wrong options of Beam.
  """
  args = options.join_beam_options(args, {'for', 'scale', *PrepareConfig.__dataclass_fields__})
  with errors.option_scope(None):
    text = TextConfig(options.option_value('--tokenizer', args))
    text.check_tokenizer_options(options.given_fields(args))
  recipe, scale = options.option_value('--for', args), options.scale_option(args)
  if recipe or scale != 'paper':
    args = ['prepare', *recipe_options(recipe or 'bert_base', scale), *args[1:]]
  return args
