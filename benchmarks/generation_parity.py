"""Compare greedy generation of exported models in transformers with plm_jax: token ids and text of ten prompts.

    python -m benchmarks.generation_parity [RECIPE ...] [--new=24]

Needs torch, transformers and plm_jax[convert]; nothing is downloaded. One recipe of every generative family is compared
at its test scale. A tokenizer of the recipe's kind is trained on a small text, and the parameters are random. The
output weights of the end token are enlarged until some of the texts end. The model is exported and loaded with
AutoTokenizer and AutoModelForCausalLM or AutoModelForSeq2SeqLM. Each prompt is continued greedily, alone and in a
padded batch, with the number of new tokens as the only other setting. Prints a table in Markdown, and exits with
status 1 if a prompt differs.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import tempfile
from typing import Any

os.environ['HF_HUB_OFFLINE'] = '1'

from flax.linen import unbox
import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

import plm_jax
from plm_jax import errors, recipes, validation
from plm_jax.inference import generate
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.models.families import BATCH_FIELDS
from plm_jax.preparation.prepare import train_tokenizer
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.tokenizers.sentence_piece import BYTE_TOKEN

NAMES = ('gpt', 'gpt2_small', 'gpt2_chinese', 'gpt3_small', 'llama_7b', 'llama2_7b', 'llama3_8b', 'pythia_14m',
         'smollm2_135m', 'smollm3_3b', 'qwen3_0b6', 'gemma3_270m', 'palm_8b', 'glm_base',
         'glm_chinese', 'gpt_bert_strict_small', 't5_small', 't5_v1_1_small', 't5_lm_small',
         't5_small_tasks', 'mt5_small', 'byt5_small', 'ul2_20b', 't5gemma_2b_2b',
         'bart_base', 'bart_chinese_base',
         'bart_translation', 'mbart_large', 'transformer_base')
SUBJECTS = ('The old teacher', 'A small dog', 'My sister', 'The river', 'Every student', 'Our neighbor',
            'A young doctor', 'The first train', 'Her brother', 'This house')
VERBS = ('reads', 'finds', 'follows', 'remembers', 'sells', 'carries', 'paints', 'likes', 'opens', 'forgets')
OBJECTS = ('the long book in the garden.', 'a red ball near the school.', 'the letters of 1984, and more.',
           'fresh bread: two loaves!', 'the road to the sea.', 'seven questions (or eight).')
CHINESE = (('老师', '学生', '我的朋友', '这条河', '医生', '他们', '小狗', '北京的人', '妹妹', '第一列火车'),
           ('看', '喜欢', '忘记', '打开', '走过', '记得', '画', '买', '等', '找到'),
           ('那本书。', '红色的球，', '2008年的信。', '新的房子！', '去海边的路。', '七个问题（或者八个）。'))


def main() -> None:
  args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  args.add_argument('recipes', nargs='*', default=NAMES)
  args.add_argument('--new', type=int, default=24, help='number of new tokens')
  args.add_argument('--keep', default='', help='folder for the exports')
  args = args.parse_args()
  transformers.utils.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  print(f'torch {torch.__version__}, transformers {transformers.__version__}, jax {jax.__version__}')
  columns = ('recipe', 'tokenizer', 'transformers class', 'ids equal', 'texts equal', 'ended', 'batch',
             'bos / eos / pad / start')
  print(f'| {" | ".join(columns)} |\n|{"---|" * len(columns)}')
  good = True
  for name in args.recipes:
    with tempfile.TemporaryDirectory() as folder:
      row, equal = compare(name, pathlib.Path(args.keep or folder) / name, args.new)
    print(f'| {" | ".join(row)} |', flush=True)
    good &= equal
  raise SystemExit(not good)


def compare(name: str, folder: pathlib.Path, new: int) -> tuple[list[str], bool]:
  """Compare one recipe.

  Returns:
    The cells of its row, and False if transformers generates anything else. A model that cannot be exported, or for
    which transformers has no class, counts as True.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  text = folder.parent / f'{name}.txt'
  parts = CHINESE if 'chinese' in name else (SUBJECTS, VERBS, OBJECTS)
  space = '' if 'chinese' in name else ' '
  lines = [space.join((subject, verb, rest)) for subject in parts[0] for verb in parts[1] for rest in parts[2]]
  text.write_text('\n'.join(lines) + '\n')
  prompts = [space.join((subject, verb)) for subject, verb in zip(parts[0], parts[1], strict=True)]
  trained = model_of(name, text, prompts, new)
  kind = type(trained.tokenizer).__name__
  try:
    exported = plm_jax.export(trained, folder)
  except errors.UserError as error:
    return [name, kind, f'refused: {str(error).splitlines()[-1].strip()}', *['-'] * 5], True
  said = json.loads((folder / 'config.json').read_text())
  ids = ' / '.join(str(said.get(f'{role}_token_id', '-')) for role in ('bos', 'eos', 'pad', 'decoder_start'))
  if 'from_pretrained' not in exported.how or said['model_type'] not in transformers.CONFIG_MAPPING:
    return [name, kind, f'none: {said["architectures"][0]}, model_type {said["model_type"]}', *['-'] * 4, ids], True
  auto = (transformers.AutoModelForSeq2SeqLM if trained.model.kind == 'encoder-decoder'
          else transformers.AutoModelForCausalLM)
  model, tokenizer = auto.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)
  want = [found for found, in plm_jax.generate(trained, prompts, max_new=new)]
  same_ids = same_texts = same_batch = 0
  tokenizer.padding_side = 'left' if trained.model.kind == 'decoder' else 'right'
  together = None
  if tokenizer.pad_token_id is not None:
    inputs = tokenizer(prompts, return_tensors='pt', padding=True)
    together = model.generate(**inputs, max_new_tokens=new, do_sample=False)
  for number, (prompt, ours) in enumerate(zip(prompts, want, strict=True)):
    inputs = tokenizer(prompt, return_tensors='pt')
    got = model.generate(**inputs, max_new_tokens=new, do_sample=False)[0].tolist()
    before = len(inputs['input_ids'][0]) if trained.model.kind == 'decoder' else 1
    same_ids += got[before:] == list(ours.tokens)
    whole = tokenizer.decode(got, skip_special_tokens=True)
    start = prompt if trained.model.kind == 'decoder' else ''
    if start:
      start = tokenizer.decode(got[:before], skip_special_tokens=True)
    if whole[len(start):] == ours.text:
      same_texts += 1
    elif same_ids == number + 1 and not same_texts:
      print(f'  text here {ours.text!r}, there {whole[len(start):]!r}')
    if together is not None:
      length = inputs['input_ids'].shape[1] if trained.model.kind == 'decoder' else 0
      row = together[number].tolist()[together.shape[1] - new if length else 1:]
      same_batch += row[:len(ours.tokens)] == list(ours.tokens)
  ended = sum(found.ended == 'end' for found in want)
  batch = '-' if together is None else f'{same_batch} / {len(prompts)}'
  total = len(prompts)
  equal = same_ids == same_texts == total and (together is None or same_batch == total)
  return [name, kind, type(model).__name__, f'{same_ids} / {total}', f'{same_texts} / {total}', str(ended), batch,
          ids], equal


def model_of(name: str, text: pathlib.Path, prompts: list[str], new: int) -> LoadedModel:
  """Build a model of a recipe at its test scale, with random parameters, such that some generated texts end."""
  config = recipes.find_recipe(name)('test')
  family, head = config.family, 'lm'
  settings = {field.name: getattr(config.data.prepare, field.name) for field in dataclasses.fields(config.data.prepare)}
  tokenizer = train_with_fewer(settings, text)
  # The embedding table has more rows than the vocabulary has tokens, as in released models.
  model = validation.with_paths(config.model, {'vocab': max(tokenizer.vocab.size + 11, 384)})
  heads: dict[str, Any] = config.objective.heads(model)
  head = head if head in heads else 'mlm'
  heads = {head: heads[head]}
  module = ModelWithHeads(model.backbone(), heads)
  batch = {key: jax.ShapeDtypeStruct((1, 8), jnp.int32)
           for key in (*BATCH_FIELDS, 'source', 'source_segments', 'place', 'types', 'ranks')}
  shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), batch)['params'])
  draw = np.random.default_rng(0)
  def leaf(path, x):
    last = path[-1].key
    mean = 1.0 if last == 'scale' else 0.0
    std = 0.05 if last in ('scale', 'bias') else 0.3
    return (mean + draw.normal(0, std, x.shape)).astype(np.float32)
  params = jax.tree_util.tree_map_with_path(leaf, shapes)
  # Random bytes are not valid characters, and libraries decode invalid bytes differently: make them unlikely.
  unlikely = [i for i, piece in enumerate(tokenizer.pieces) if BYTE_TOKEN.fullmatch(piece)]
  for number in unlikely:
    params = with_token(params, model, number, 0.0)
  trained = LoadedModel(family, model, heads, params, tokenizer)
  if not trained.lm_head_name or model.kind not in ('decoder', 'encoder-decoder'):
    return trained
  end = generate.end_ids(tokenizer.vocab)[0]
  for factor in (1.0, 1.3, 1.7, 2.2, 3.0, 4.0):
    enlarged = dataclasses.replace(trained, params=with_token(params, model, end, factor))
    found = [row for (row,) in plm_jax.generate(enlarged, prompts, max_new=new)]
    if sum(row.ended == 'end' for row in found) >= 3:
      return enlarged
  return enlarged


def train_with_fewer(settings: dict[str, Any], text: pathlib.Path) -> Any:
  """Train the tokenizer with the largest of several vocabulary sizes that the small text supports."""
  for vocab in (400, 250, 180, 140, 115, 100):
    try:
      return train_tokenizer(PrepareConfig(**settings, source=str(text), vocab=vocab))
    except errors.UserError as error:
      last = error
  raise last


def with_token(params: Any, model: Any, token: int, factor: float) -> Any:
  """Return a copy of the parameters with the output weights of a token multiplied by `factor`.

  With tied embeddings these are its row of the embedding table.
  """
  params = jax.tree.map(np.copy, params)
  if getattr(model, 'tied', True) and 'kernel' not in params.get('heads_lm', {}):
    place = params['backbone']
    place = place if 'tokens' in place else place['embeddings']
    place['tokens'][token] *= factor
  else:
    params['heads_lm']['kernel'][:, token] *= factor
  return params


if __name__ == '__main__':
  main()
