"""Labelled files of every kind, so small that a run on them takes seconds, and runs on them."""
import json
import pathlib
import random
from typing import Any

from plm_jax import validation
from plm_jax.config.run import FinetuneRun, Phase
from plm_jax.recipes import finetune
from plm_jax.recipes.finetune import InitialModel
from plm_jax.tokenizers import Tokenizer, train_wordpiece

NAMES, GOOD, BAD = ('ana', 'bo', 'cy', 'dan'), ('good', 'fine'), ('bad', 'poor')
REST = ('the', 'a', 'film', 'book', 'is', 'was', 'of', 'and')
KINDS = ('classification', 'tagging', 'answers', 'choice')


def words(draw: random.Random, least: int = 2, most: int = 8) -> list[str]:
  return draw.choices(REST, k=draw.randint(least, most))


def tokenizer() -> Tokenizer:
  return train_wordpiece([' '.join((*NAMES, *GOOD, *BAD, *REST, 'who'))] * 9, 80)


def write(folder: pathlib.Path, kind: str, part: str, count: int) -> str:
  """Write `count` examples of a kind, each of at most 16 tokens, and return the file."""
  draw, rows = random.Random(f'{kind} {part}'), []
  for number in range(count):
    text = words(draw)
    place = draw.randrange(len(text))
    name = draw.choice(NAMES)
    if kind == 'classification':
      text[place] = draw.choice((BAD, GOOD)[number % 2])
      rows.append({'text': ' '.join(text), 'label': ('bad', 'good')[number % 2]})
    elif kind == 'regression':
      text[place] = draw.choice((BAD, GOOD)[number % 2])
      rows.append({'text': ' '.join(text), 'score': 5 * (number % 2)})
    elif kind == 'tagging':
      text[place] = name
      rows.append({'words': text, 'tags': ['B-PER' if word in NAMES else 'O' for word in text]})
    elif kind == 'answers':
      text[place] = name
      context = ' '.join(text)
      rows.append({'question': 'who is', 'context': context,
                   'answers': [{'text': name, 'answer_start': context.index(name)}]})
    else:
      rows.append({'context': ' '.join(text[:4]), 'label': number % 2,
                   'choices': [draw.choice((GOOD, BAD)[(place == number % 2)])
                               for place in range(2)]})
  path = folder / f'{kind}.{part}.jsonl'
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def phases(steps: int, length: int = 16) -> tuple[Phase, ...]:
  return (Phase(steps, length, 8),)


def run(folder: pathlib.Path, kind: str = 'classification', steps: int = 6,
        start: InitialModel = InitialModel(),
        **changes: Any) -> FinetuneRun:
  """A run of batches of 8 on one device, evaluated and saved at every second step; `changes` of
  fields by their paths, dots as double underscores. folder: of tokenizer and files, which are made
  where they are not there."""
  if not (folder / 'tokenizer').exists():
    tokenizer().save(folder / 'tokenizer')
  files = [folder / f'{kind}.{part}.jsonl' for part in ('train', 'dev')]
  if not files[0].exists():
    write(folder, kind, 'train', 28)
    write(folder, kind, 'dev', 10)
  config = finetune.recipe(kind, start, 'test', (str(files[0]),), (str(files[1]),))
  if kind == 'answers':
    changes = {'objective__stride': 4, 'objective__question_length': 4, **changes}
  return validation.with_paths(config, {
      'data.epochs': 0.0, 'data.tokenizer': str(folder / 'tokenizer'),
      'train.phases': phases(steps),
      'train.log_every': 1, 'train.eval_every': 2, 'train.save_every': 2, 'mesh.data': 1,
      **({} if start.model else {'model.vocab': 80}), 'optim.peak': 1e-2,
      **{name.replace('__', '.'): value for name, value in changes.items()}})
