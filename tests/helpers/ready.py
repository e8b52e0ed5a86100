"""Small models of every kind that `import plm_jax` takes, with random parameters in host arrays."""
from collections.abc import Sequence
import functools
from typing import Any

import backbones
import jax
import jax.numpy as jnp
import labelled
import numpy as np
import tiny
import tuned

from plm_jax import conversion, tokenizers, validation
from plm_jax.architectures.elmo import Elmo
from plm_jax.layers.char_cnn import CharacterConfig
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.pooling import VectorConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.models import gpt_bert
from plm_jax.models.elmo import ElmoConfig
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.mntp import MaskedNextToken
from plm_jax.tasks.contract import Task
from plm_jax.tasks.embedding_losses import InBatch
from plm_jax.tasks.objective import TaskObjective
from plm_jax.tasks.sentence_embedding import EmbeddingTask
from plm_jax.tokenizers import Tokenizer
from plm_jax.tokenizers.contract import GLM_TOKENS

WORDS = ['ana', 'came', 'home', 'and', 'read', 'a', 'fine', 'film', 'to', 'bo', 'who', 'had', 'a',
         'dull', 'book', 'of',
         'cy', 'on', 'the', 'table']
LINES = [' '.join(WORDS[start:] + WORDS[:start]) + '.' for start in range(len(WORDS))]
LENGTH = 64
PAD = {'tokens', 'segments', 'decoder_tokens', 'decoder_segments', 'place', 'types', 'ranks',
       'positions'}


def model(kind: str) -> LoadedModel:
  """Makes a model: a task of `tuned`, 'embedding', 'elmo', 'gptbert', or a family with its
  language-modeling head."""
  if kind in tuned.TASKS:
    return tuned.trained(kind)
  if kind == 'embedding':
    return embedding()
  if kind == 'elmo':
    return elmo()
  if kind == 'gptbert':
    tokenizer = trained_tokenizer('roberta')
    config = validation.with_paths(gpt_bert.base(), {
        'block.width': 24, 'block.heads': 3, 'block.mlp_dim': 16, 'stack.layers': 2,
        'vocab': tokenizer.vocab.size,
        'max_length': LENGTH})
    return of_heads('gptbert', config, MaskedNextToken().heads(config), tokenizer)
  tokenizer = trained_tokenizer({'bert': 'wordpiece', 'glm': 'blanks', 't5': 't5',
                                 'bart': 'roberta'}.get(kind, 'gpt2'))
  config = backbones.small(kind, tokenizer.vocab.size, LENGTH)
  if kind == 'glm':
    return of_heads(kind, config, BlankInfilling().heads(config), tokenizer)
  names = ('mlm',) if kind == 'bert' else ('lm',)
  return of_heads(kind, config, {name: conversion.build_head(kind, name, config, 2)
                                 for name in names}, tokenizer)


@functools.cache
def trained_tokenizer(kind: str) -> Tokenizer:
  """Trains a tokenizer on a few lines."""
  if kind == 't5':
    return tokenizers.train_sentencepiece(LINES * 4, 140, layout='t5')
  if kind == 'gpt2':
    return tokenizers.train_byte_bpe(LINES * 4, 300, layout='gpt2')
  if kind == 'roberta':
    return tokenizers.train_byte_bpe(LINES * 4, 300)
  pieces = tokenizers.train_wordpiece(LINES * 4, 80)
  return tokenizers.WordPiece([*pieces.pieces, *GLM_TOKENS]) if kind == 'blanks' else pieces


def of_heads(family: str, config: Any, heads: Any, tokenizer: Tokenizer) -> LoadedModel:
  """Makes a backbone with heads."""
  zeros = dict.fromkeys(PAD, jnp.zeros((1, 4), jnp.int32))
  shapes = jax.eval_shape(ModelWithHeads(config.backbone(), heads).init, jax.random.key(0),
                          zeros)['params']
  return LoadedModel(family, config, dict(heads), on_host(shapes), tokenizer)


def embedding() -> LoadedModel:
  """Makes a model of sentence vectors."""
  task = EmbeddingTask(vector_loss=InBatch(), vector=VectorConfig(('mean',), normalize=True))
  return of_task(task, labelled.tokenizer())


def of_task(task: Task, tokenizer: Tokenizer) -> LoadedModel:
  """Makes a small BERT with the head of a task."""
  config = validation.with_paths(tiny.config(),
                                 {'vocab': tokenizer.vocab.size, 'max_length': LENGTH})
  objective = TaskObjective(task)
  shapes = jax.eval_shape(objective.build(config, False).init, jax.random.key(0),
                          objective.shapes(2, 8))
  return LoadedModel('bert', config, task.heads(config), on_host(shapes['params']), tokenizer,
                     labels=task.labels,
                 task=task, length=LENGTH)


def elmo(tokenizer: Any = None) -> LoadedModel:
  """Makes an ELMo. tokenizer: splits at spaces; None: of a few words"""
  config = ElmoConfig(characters=CharacterConfig(size=3, filters=((1, 4), (3, 6)), highways=1,
                                                 longest=9), width=5,
                      cells=7)
  shapes = jax.eval_shape(Elmo(config).init, jax.random.key(0),
                          {'characters': jnp.zeros((1, 2, 9), jnp.int32)})
  tokenizer = tokenizer or tokenizers.train_word_tokenizer(LINES * 4, 40)
  return LoadedModel('elmo', config, {}, {'backbone': on_host(shapes['params'])}, tokenizer)


def on_host(shapes: Any, seed: int = 0) -> Any:
  """Draws random parameters, as the host arrays that a checkpoint is read into."""
  return jax.tree.map(np.array, tiny.random_params(shapes, seed))


def texts(number: int, count: int = 1, words: int = 5) -> list[str]:
  """Returns texts of so many words: other ones for each number, all of about the same length."""
  return [sentence([*WORDS, *WORDS][number % 8 + 2 * place:][:words]) for place in range(count)]


def sentence(words: Sequence[str]) -> str:
  """Joins words."""
  return ' '.join(words)
