"""Compare fine-tuning in plm_jax and in transformers step by step, from the same weights on the same batches.

    python -m benchmarks.finetune_parity --data DIR
    python -m benchmarks.finetune_parity --data DIR --family bert gpt2 --task sst2 squad

Needs the extra `bench`, and somewhere in DIR sst2_dev.tsv.gz, stsb_dev.tsv.gz, wikigold.conll.gz,
squad_v1.1_devA.json.gz and swag_sample500.jsonl.gz.

transformers creates and saves a small random model with the head of the task and without dropout. `plm_jax finetune`
fine-tunes it from that folder, as from any other checkpoint. transformers' model then trains on exactly the batches of
that run, with torch's AdamW and gradient clipping. The schedule is the Trainer's, and
the same parameters have no weight decay as there. The comparison covers the losses of all steps, the gradient norms
before clipping, and the distance between the final parameters as a share of how far they moved. Where transformers'
tokenizer makes such sequences, they are compared, too.

Padding matters in one place: in the softmax over a sequence that predicts the position of an answer. transformers'
embedding tables keep the row of the padding token fixed (padding_idx). BERT's own code and plm_jax do not, so this is
switched off for torch. There is no convention for what padding attends to in a decoder or in DeBERTa, and
implementations differ. Contexts are therefore truncated for these families so that sequences are full.
"""
import argparse
from collections.abc import Sequence
import contextlib
import dataclasses
import io
import json
import pathlib
import tempfile
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.side_by_side import machine
from benchmarks.training_step import torch_ready
from plm_jax import conversion, tokenizers
from plm_jax.config.run import FinetuneRun, Phase
from plm_jax.conversion import tokenizer_files
from plm_jax.finetuning.setup import ResolvedRun, resolve_run
from plm_jax.loading.loaded_model import read_model_config
from plm_jax.recipes import finetune
from plm_jax.runs import run as runs
from plm_jax.runs.finetune import read_unlabeled_examples
from plm_jax.sharding import MeshConfig, make_mesh
from plm_jax.tasks.input_formats import get_input_format
from plm_jax.tasks.sources import read_sources
from plm_jax.tokenizers import Tokenizer

FILES = {'sst2': 'sst2_dev.tsv.gz', 'stsb': 'stsb_dev.tsv.gz', 'wikigold': 'wikigold.conll.gz',
         'squad': 'squad_v1.1_devA.json.gz', 'swag': 'swag_sample500.jsonl.gz'}
CLASSES = {'sst2': 'SequenceClassification', 'stsb': 'SequenceClassification', 'wikigold': 'TokenClassification',
           'squad': 'QuestionAnswering', 'swag': 'MultipleChoice'}
FAMILIES = {'bert': 'Bert', 'deberta': 'Deberta', 'deberta-v2': 'DebertaV2', 'gpt2': 'GPT2', 't5': 'T5'}
WIDTH, LAYERS, HEADS, PIECES, LENGTH, BATCH, STEPS = 64, 3, 4, 2000, 128, 8, 20
STD = 0.1  # of the initial parameters: large, so that outputs depend on all of them
OPTIM: Any = dict(peak=1e-3, warmup=4, schedule='linear', bias_correction=True, eps=1e-6, weight_decay=0.1,
                  clip=1.0)
"""Optimizer settings that transformers' Trainer supports too; the others are the recipe's."""
EXEMPT = {'t5': ('bias', 'scale', 'buckets')}
"""Parameters without weight decay: for transformers' Trainer, T5's relative_attention_bias is a bias."""


class Compared(NamedTuple):
  """Result of a pair of runs."""

  loss: float
  """largest difference between the losses of a step"""
  norm: float
  """largest relative difference between the gradient norms of a step"""
  parameters: float
  """distance between the final parameters, as a share of how far torch's parameters moved"""
  first: float
  last: float
  """torch's losses of the first and the last step"""
  rows: str
  """how many rows transformers' tokenizer makes in the same way"""


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data', required=True, help='folder with the files, at any depth')
  parser.add_argument('--family', choices=FAMILIES, nargs='*', default=list(FAMILIES))
  parser.add_argument('--task', choices=FILES, nargs='*', default=list(FILES))
  parser.add_argument('--steps', type=int, default=STEPS)
  args = parser.parse_args()
  torch_ready()
  print(machine('jax', 'torch', 'transformers'))
  print('\n| family | task | losses of torch | loss | gradient norm | parameters | rows as transformers makes them |')
  print('|---' * 7 + '|')
  with tempfile.TemporaryDirectory() as folder:
    for family in args.family:
      tokenizer = trained_tokenizer(family, args.data)
      for task in args.task:
        if not model_class(family, task):
          print(f'| {family} | {task} | transformers has no such class | | | | |')
          continue
        found = compared(pathlib.Path(folder) / f'{family}-{task}', family, task, args.data, tokenizer, args.steps)
        print(f'| {family} | {task} | {found.first:.3f} to {found.last:.3f} | {found.loss:.1e} | {found.norm:.1e} | '
              f'{found.parameters:.1e} | {found.rows} |', flush=True)


def file_of(task: str, data: str) -> str:
  found = sorted(pathlib.Path(data).expanduser().rglob(FILES[task]))
  if not found:
    raise SystemExit(f'{data} has no {FILES[task]}')
  return str(found[0])


def trained_tokenizer(family: str, data: str) -> Tokenizer:
  """Train the family's kind of tokenizer on the texts of all tasks."""
  configs = [finetune.recipe(task, train=(file_of(task, data),)) for task in FILES]
  lines = [config.objective.example_format.join_texts(example) for config in configs
           for example in read_unlabeled_examples(config, config.data)]
  if family == 'bert':
    return tokenizers.train_wordpiece(lines, PIECES)
  if family in ('deberta', 'gpt2'):
    return tokenizers.train_byte_bpe(lines, PIECES, layout='gpt2' if family == 'gpt2' else 'bert')
  return tokenizers.train_sentencepiece(lines, PIECES, layout='deberta' if family == 'deberta-v2' else 't5')


def model_class(family: str, task: str) -> Any:
  """Return transformers' model class for the task, or None if it has none."""
  import transformers

  name = FAMILIES[family]
  kind = 'DoubleHeadsModel' if (family, task) == ('gpt2', 'swag') else f'For{CLASSES[task]}'
  return getattr(transformers, name + kind, None)


def saved(folder: pathlib.Path, family: str, task: str, tokenizer: Tokenizer) -> None:
  """Write a random model of transformers with the head of the task, and the tokenizer."""
  import torch
  import transformers

  vocab = tokenizer.vocab
  labels = {'wikigold': 9, 'stsb': 1, 'swag': 1}.get(task, 2)
  common = {'vocab_size': vocab.size, 'num_labels': labels, 'pad_token_id': max(vocab.pad, 0)}
  encoder = {'hidden_size': WIDTH, 'num_hidden_layers': LAYERS, 'num_attention_heads': HEADS,
             'intermediate_size': 4 * WIDTH, 'max_position_embeddings': LENGTH, 'hidden_dropout_prob': 0.0,
             'attention_probs_dropout_prob': 0.0, 'initializer_range': STD}
  disentangled = {**encoder, 'relative_attention': True, 'pos_att_type': ['p2c', 'c2p'],
                  'position_biased_input': False, 'type_vocab_size': 0}
  sizes = {
      'bert': encoder, 'deberta': disentangled,
      'deberta-v2': {**disentangled, 'position_buckets': 32, 'norm_rel_ebd': 'layer_norm', 'share_att_key': True},
      'gpt2': {'n_embd': WIDTH, 'n_layer': LAYERS, 'n_head': HEADS, 'n_positions': LENGTH, 'resid_pdrop': 0.0,
               'embd_pdrop': 0.0, 'attn_pdrop': 0.0, 'summary_first_dropout': 0.0, 'classifier_dropout': 0.0,
               'initializer_range': STD, 'bos_token_id': vocab.bos, 'eos_token_id': vocab.eos},
      't5': {'d_model': WIDTH, 'd_kv': WIDTH // HEADS, 'd_ff': 4 * WIDTH, 'num_layers': LAYERS, 'num_heads': HEADS,
             'dropout_rate': 0.0, 'classifier_dropout': 0.0, 'decoder_start_token_id': vocab.pad,
             'eos_token_id': vocab.eos}}[family]
  torch.manual_seed(0)
  model = model_class(family, task)(getattr(transformers, f'{FAMILIES[family]}Config')(**common, **sizes))
  model.save_pretrained(folder)
  tokenizer_files.save(folder, tokenizer, LENGTH)
  if family == 'deberta':  # as `export` does; transformers 5 puts two separators between texts, DeBERTa's own code one
    tokenizer_files.set_text_frame(folder, tokenizer, get_input_format(family).special_ids(vocab))


def compared(folder: pathlib.Path, family: str, task: str, data: str, tokenizer: Tokenizer, steps: int) -> Compared:
  """Fine-tune with both libraries and compare losses, gradient norms, parameters and rows."""
  with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    saved(folder, family, task, tokenizer)
    file = file_of(task, data)
    if task == 'squad' and family != 'bert':
      file = full_rows(folder, file, tokenizer)
    config = run_of(folder, task, file, steps)
    result: Any = runs.run(config)
  lines = [json.loads(line) for line in (pathlib.Path(config.folder) / 'metrics.jsonl').read_text().splitlines()]
  ours = np.array([[line['loss'], line['grad_norm']] for line in lines if line['split'] == 'train'])
  ready = resolve_run(config, tokenizer)
  feed = ready.open_feed(make_mesh(MeshConfig()))
  batches = [feed.batches.batch(step) for step in range(steps)]
  theirs, begun, ended = learned(folder, family, task, [arrays for arrays, _ in batches], ready.config)
  rules = conversion.get_family(family).specialize(ready.config.model)
  named = dict(conversion.export_tensors(rules, jax.device_get(result.params), copies=True))
  named = {name: named[conversion.rename_tensor(rules, name)] for name in ended}
  apart, moved = (np.sqrt(sum(np.square(x - other[name]).sum() for name, x in some.items()))
                  for some, other in ((named, ended), ({name: begun[name] for name in named}, ended)))
  rows = agreement(folder, family, ready, [placed.number for _, placed in batches])
  gaps = np.abs(ours - theirs)
  return Compared(gaps[:, 0].max(), (gaps[:, 1] / theirs[:, 1]).max(), float(apart / moved), *theirs[[0, -1], 0], rows)


def run_of(folder: pathlib.Path, name: str, file: str, steps: int) -> FinetuneRun:
  """Return the recipe's run of the task from the folder, with the optimizer and the sizes of this comparison."""
  config = finetune.recipe(name, finetune.InitialModel(str(folder), *read_model_config(folder)), train=(file,))
  loop = dataclasses.replace(config.train, phases=(Phase(steps, LENGTH, BATCH),), log_every=1, best='')
  task = dataclasses.replace(config.objective, head_dropout=0.0)  # the checkpoint does not set it
  return dataclasses.replace(
      config, output=f'{folder}-run', objective=task, data=dataclasses.replace(config.data, epochs=0.0), train=loop,
      optim=dataclasses.replace(config.optim, **OPTIM, exempt=EXEMPT.get(config.family, ('bias', 'scale'))))


def full_rows(folder: pathlib.Path, file: str, tokenizer: Tokenizer) -> str:
  """Write the questions that fill exactly one row together with their context; return the path of the file.

  Contexts are truncated at the end of a word, and still contain an answer.
  """
  config, path = run_of(folder, 'squad', file, 1), folder.with_suffix('.jsonl')
  task, cuts = config.objective, []
  for example in read_sources(task.example_kind, config.data.train).examples:
    question, context = example.texts
    room = LENGTH - task.input_format.count_special(tokenizer.vocab, 2) - len(tokenizer.encode_batch([question])[0])
    ids, _, starts = tokenizer.encode_with_offsets([context])
    cut = context[:starts[room]].rstrip() if 0 < room < len(ids) else context
    answers = tuple(answer for answer in example.answers or () if answer.start + len(answer.text) <= len(cut))
    if answers and context[len(cut):len(cut) + 1].isspace():
      cuts.append(dataclasses.replace(example, texts=(question, cut), answers=answers))
  made = task.features(cuts, tokenizer, LENGTH)
  full = {int(made.example[row]) for row in range(len(made)) if len(made.tokens[row]) == LENGTH}
  alone = np.bincount(made.example, minlength=len(cuts)) == 1
  kept = [{'question': example.texts[0], 'context': example.texts[1], 'answers': {
      'text': [answer.text for answer in example.answers or ()],
      'answer_start': [answer.start for answer in example.answers or ()]}}
      for number, example in enumerate(cuts) if number in full and alone[number]]
  path.write_text(''.join(json.dumps(row) + '\n' for row in kept))
  return str(path)


def learned(
  folder: pathlib.Path, family: str, task: str, batches: Sequence[dict[str, np.ndarray]], config: FinetuneRun
):
  """Train on the batches with torch.

  Returns:
    The losses and gradient norms [steps, 2], and the parameters by name before and after training.
  """
  import torch
  import transformers

  model = model_class(family, task).from_pretrained(folder)
  model.train()
  model.get_input_embeddings().padding_idx = None
  def parameters():
    return {name: x.detach().numpy().copy() for name, x in model.named_parameters()}
  begun, optim = parameters(), config.optim
  decay = {*transformers.Trainer.get_decay_parameter_names(None, model)}  # pyright: ignore
  groups = [{'params': [x for name, x in model.named_parameters() if (name in decay) == yes], 'weight_decay': rate}
            for yes, rate in ((True, optim.weight_decay), (False, 0.0))]
  optimizer = torch.optim.AdamW(groups, lr=optim.peak, betas=(optim.b1, optim.b2), eps=optim.eps)
  schedule = transformers.get_linear_schedule_with_warmup(optimizer, optim.warmup, len(batches))
  numbers = []
  for batch in batches:
    found = model(**{name: torch.tensor(x) for name, x in arguments(family, task, batch).items()})
    loss = found.mc_loss if 'mc_loss' in found else found.loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
    numbers.append([loss.item(), norm.item()])
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
  return np.array(numbers), begun, parameters()


def arguments(family: str, task: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Return the arguments of transformers' model class for a batch without empty rows."""
  assert (batch['weight'] == 1).all()
  given = {'input_ids': batch['tokens'].astype(np.int64), 'attention_mask': (batch['segments'] > 0).astype(np.int64)}
  if family == 'bert':
    given['token_type_ids'] = batch['types'].astype(np.int64)
  if task == 'wikigold':
    return given | {'labels': np.where(batch['marks'] > 0, batch['tags'], -100).astype(np.int64)}
  if task == 'squad':
    return given | {f'{name}_positions': batch[name][:, 0].astype(np.int64) for name in ('start', 'end')}
  label = batch['label'][:, 0] if task == 'stsb' else batch['label'][:, 0].astype(np.int64)
  if (family, task) == ('gpt2', 'swag'):
    return given | {'mc_labels': label, 'mc_token_ids': batch['extract'][..., 0].astype(np.int64)}
  return given | {'labels': label}


def agreement(folder: pathlib.Path, family: str, ready: ResolvedRun, batches: Sequence[np.ndarray]) -> str:
  """Count the rows of the batches that transformers' tokenizer makes in the same way.

  Rows agree if their token ids are equal, and for BERT their token types as well.
  """
  import transformers

  if family == 'gpt2':
    return 'it puts nothing around texts'
  fast, task = transformers.AutoTokenizer.from_pretrained(folder), ready.config.objective
  features = ready.train.features
  same = every = 0
  for number in np.unique(np.concatenate(batches)).tolist():
    own = np.flatnonzero(features.example == features.example[number])
    made = theirs(fast, task, ready.train.examples[features.example[number]], int(np.flatnonzero(own == number)[0]))
    every += 1
    alike = made['input_ids'] == features.tokens[number].tolist()
    same += alike and (family != 'bert' or made['token_type_ids'] == features.aligned['types'][number].tolist())
  return f'{same} of {every}'


def theirs(fast: Any, task: Any, example: Any, number: int) -> dict[str, list[int]]:
  """Return row `number` of an example, as made by transformers' scripts for the kind of task."""
  texts, cut = example.texts, {'longest': 'longest_first', 'first': 'only_first', 'second': 'only_second'}[task.cut]
  limits = {'truncation': cut, 'max_length': LENGTH}
  if task.example_kind == 'tagging':
    if type(fast.backend_tokenizer.pre_tokenizer).__name__ == 'ByteLevel':  # a word alone has no space before it
      return fast(' '.join(texts), truncation=True, max_length=LENGTH)
    return fast(list(texts), is_split_into_words=True, truncation=True, max_length=LENGTH)
  if task.example_kind == 'choice':
    return fast(texts[0], f'{texts[1]} {example.choices[number]}'.strip(), **limits)
  if task.example_kind == 'answers':
    question = len(fast(texts[0], add_special_tokens=False)['input_ids'])
    room = LENGTH - question - fast.num_special_tokens_to_add(pair=True)
    rows = fast(*texts, truncation='only_second', max_length=LENGTH, stride=max(0, room - task.stride),
                return_overflowing_tokens=True)
    return {name: rows[name][number] for name in ('input_ids', 'token_type_ids') if name in rows}
  return fast(*texts, **limits)


if __name__ == '__main__':
  main()
