"""A GLM with random parameters, and one that has learned a task of words."""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.config.run import ConfigError
from plm_jax.evaluation.cloze import ClozeTask, classify
from plm_jax.inference import generate, glm_infill
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.loading.generation_config import GenerationConfig
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.tokenizers import WordPiece
from plm_jax.tokenizers.contract import GLM_TOKENS

PIECES = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'abcdefghijklmnopqrstuvwxyz', 'very',
          'good', 'bad', '.',
          *GLM_TOKENS]
TOKENIZER = WordPiece(PIECES)
VOCAB = TOKENIZER.vocab
CONFIG = DecoderConfig(
    vocab=VOCAB.size + 3, block=tiny.block(
        norm_at='pre', norm=dict(eps=1e-5), dropout=0.0, attention=dict(dropout=0.0)),
    stack=StackConfig(2), max_length=40, types=40)
PROMPTS = ['a b [MASK] c d e [sMASK] f.', 'g [MASK] h [MASK]', '[MASK] i j k l m n [MASK] o']


@functools.cache
def trained(seed=0) -> LoadedModel:
  heads = BlankInfilling().heads(CONFIG)
  model = ModelWithHeads(CONFIG.backbone(), heads)
  ids = jnp.zeros((1, 4), jnp.int32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), dict.fromkeys(
      ('tokens', 'segments', 'place', 'types', 'ranks', 'positions'), ids))['params']
  return LoadedModel('glm', CONFIG, heads, tiny.random_params(shapes, seed, std=0.3), TOKENIZER)


@functools.cache
def forward():
  model = ModelWithHeads(CONFIG.backbone(), trained().heads)
  def logits(params, batch):
    outputs: Any = model.apply({'params': params}, batch)
    return outputs['lm']
  return jax.jit(logits)


def row(text, length=40):
  """One row without left padding: the row of the objective."""
  laid = glm_infill.build_row(text, VOCAB)
  size = len(laid['tokens'])
  return size, {name: jnp.array([x + [0] * (length - size)], jnp.int32) for name, x in laid.items()}


def naively(text, most):
  """Token by token by whole rows -> ids up to the end."""
  written = []
  place = text.filled[-1][0]
  while len(written) < most:
    size, batch = row(text._replace(filled=(*text.filled[:-1], (place, written))))
    token = int(forward()(trained().params, batch)[0, size - 1, :VOCAB.size].argmax())
    if token in (VOCAB.eop, VOCAB.pad):
      break
    written.append(token)
  return written


def test_a_row_is_the_objectives():
  """Du et al. 2022, figure 2, with the shorter span first."""
  text = glm_infill.InfillingText([11, 12, 4, 14, 4], ((2, (13,)), (4, (15, 16))))
  assert glm_infill.build_row(text, VOCAB) == dict(
      tokens=[11, 12, 4, 14, 4, VOCAB.sop, 13, VOCAB.sop, 15, 16],
      place=[0, 1, 2, 3, 4, 2, 2, 4, 4, 4],
      types=[0, 0, 0, 0, 0, 1, 2, 1, 2, 3], segments=[1] * 10, ranks=[0, 0, 0, 0, 0, 1, 2, 3, 4, 5])


@pytest.mark.slow
def test_filled_blanks_equal_full_passes():
  """Of ragged prompts, one blank after another, from the cache."""
  most = 6
  found = glm_infill.fill_blanks(trained(), PROMPTS, GenerationConfig(max_new=most))
  assert [len(some) for some in found] == [2, 2, 2]
  for prompt, some in zip(PROMPTS, found, strict=True):
    text = glm_infill.InfillingText(glm_infill.encode_prompt(trained(), prompt))
    for place in [at for at, token in enumerate(text.ids) if token in glm_infill.mask_ids(VOCAB)]:
      written = naively(text._replace(filled=(*text.filled, (place, []))), most)
      text = text._replace(filled=(*text.filled, (place, written)))
    assert some == [TOKENIZER.decode(ids) for _, ids in text.filled]
  assert sum(len(words.split()) for some in found for words in some) > 6


def test_part_a_has_an_end_token_unless_a_blank_ends_it():
  assert glm_infill.encode_prompt(trained(), 'a [MASK] b')[-1] == VOCAB.pad
  assert glm_infill.encode_prompt(trained(), 'a [gMASK]')[-1] == VOCAB.gmask


def test_generate_continues_a_text_in_a_blank():
  """`generate` fills [gMASK] with a GLM."""
  found = generate.generate(trained(), ['a b c', 'd', 'e f g h'], GenerationConfig(max_new=6))
  text = glm_infill.make_continuation(trained(), 'a b c')
  assert text.ids == [VOCAB.cls, *TOKENIZER.encode('a b c'), VOCAB.gmask]
  assert [token for token in found[0][0].tokens if token
          not in (VOCAB.eop, VOCAB.pad)] == naively(text, 6)
  assert glm_infill.make_continuation(trained(), 'a b c [gMASK]') == text


def test_scores_are_sums_over_whole_rows():
  asked = [('a [MASK] b', 'good'), ('a [MASK] b', 'very good'), ('c d e f [MASK]', 'bad')]
  found = glm_infill.score_blanks(trained(), asked, rows=2)
  for (prompt, words), got in zip(asked, found, strict=True):
    ids, written = glm_infill.encode_prompt(trained(), prompt), TOKENIZER.encode(words)
    size, batch = row(glm_infill.InfillingText(ids, ((ids.index(VOCAB.mask), written),)))
    logprobs = jax.nn.log_softmax(forward()(trained().params, batch)[0])
    want = sum(logprobs[size - 1 - len(written) + k, token]
               for k, token in enumerate([*written, VOCAB.eop]))
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.release
@pytest.mark.slow
def test_a_task_is_learned_as_a_cloze():
  """Texts with a letter of the first half of the alphabet are very good, the others bad; the
  model classifies new texts."""
  cloze = ClozeTask('{text} . [MASK] .', ('very good', 'bad'))
  draw = np.random.default_rng(0)
  def examples(number):
    labels = draw.integers(0, 2, number)
    texts = [' '.join(chr(97 + 13 * label + letter) for letter in draw.integers(0, 13, 3))
             for label in labels]
    return [{'text': text} for text in texts], labels
  texts, labels = examples(64)
  laid = []
  for example, label in zip(texts, labels, strict=True):
    ids = glm_infill.encode_prompt(trained(), cloze.ask(example))
    laid.append(
      glm_infill.build_row(
        glm_infill.InfillingText(ids, ((ids.index(VOCAB.mask),
                                        TOKENIZER.encode(cloze.words[label])),)), VOCAB
      )
    )
  batch = glm_infill.left_pad_rows(laid, 16, VOCAB)
  following = jnp.where(jnp.roll(batch['types'], -1, 1) > 1, jnp.roll(batch['tokens'], -1, 1),
                        VOCAB.eop)
  optimizer = optax.adam(1e-2)

  @jax.jit
  def learn(params):
    def loss(params):
      losses = optax.softmax_cross_entropy_with_integer_labels(forward()(params, batch), following)
      return (losses * (batch['types'] > 0)).mean()
    def step(carry, _):
      params, state = carry
      value, grads = jax.value_and_grad(loss)(params)
      updates, state = optimizer.update(grads, state)
      return (optax.apply_updates(params, updates), state), value
    return jax.lax.scan(step, (params, optimizer.init(params)), None, 60)
  (params, _), _ = learn(jax.tree.map(lambda x: x / 2, trained(1).params))
  learned = dataclasses.replace(trained(), params=params)
  texts, labels = examples(100)
  probabilities = classify(learned, cloze, texts)
  np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
  assert (probabilities.argmax(1) == labels).mean() >= 0.95
  assert abs((classify(trained(), cloze, texts).argmax(1) == labels).mean() - 0.5) < 0.2
  written = glm_infill.fill_blanks(learned, [cloze.ask(text) for text in texts[:8]],
                                   GenerationConfig(max_new=6))
  assert {words for words, in written} == set(cloze.words)


def test_unusable_blanks_are_refused():
  with pytest.raises(ConfigError, match=r"there is no blank in 'a b'"):
    glm_infill.fill_blanks(trained(), ['a b'])
  with pytest.raises(ConfigError,
                     match=r'rows of 43 tokens .* the model takes 40 tokens, and 39 in a blank'):
    glm_infill.fill_blanks(trained(), ['a ' * 38 + '[MASK] b'], GenerationConfig(max_new=5))
  with pytest.raises(ConfigError, match=r'blanks of up to 64 do not fit'):
    glm_infill.fill_blanks(trained(), ['a [MASK] b'], GenerationConfig(max_new=64))
  with pytest.raises(ConfigError, match='expected one blank'):
    glm_infill.score_blanks(trained(), [('[MASK] and [MASK]', 'a')])
  with pytest.raises(ConfigError, match=r"needs 'text'; the example has \['words'\]"):
    ClozeTask('{text} [MASK]', ('a', 'b')).ask({'words': 'a'})
  with pytest.raises(CheckpointError, match=r'no <\|startofpiece\|> and no <\|endofpiece\|>'):
    glm_infill.fill_blanks(dataclasses.replace(trained(), tokenizer=WordPiece(PIECES[:-4])),
                           PROMPTS)
  with pytest.raises(CheckpointError,
                     match='no GLM: it continues texts, by `python -m plm_jax generate`'):
    glm_infill.fill_blanks(dataclasses.replace(trained(),
                                               model=dataclasses.replace(CONFIG, types=0)), PROMPTS)
  with pytest.raises(CheckpointError, match='no GLM: it has no language model head'):
    glm_infill.fill_blanks(dataclasses.replace(trained(), heads={}), PROMPTS)
  with pytest.raises(ConfigError,
                     match=r'there is no prompt: give a text with a \[MASK\] in place of the text '
                           r'to generate'):
    glm_infill.fill_blanks(trained(), [])
  for ask in (
    glm_infill.fill_blanks,
    lambda model, texts: glm_infill.score_blanks(model, [(text, 'a') for text in texts]),
  ):
    with pytest.raises(ConfigError, match='is not UTF-8 text, at character 7'):
      ask(trained(), ['a [MASK] b', '[MASK] \udc80'])


@pytest.mark.slow
def test_examples_of_a_report(monkeypatch):
  """Texts that do not fit are omitted."""
  monkeypatch.setattr(
    glm_infill, 'sample_heldout_blanks',
    lambda *_: [('a [MASK] c', 'b'), ('a ' * 30 + '[MASK]', 'b')]
  )
  found = glm_infill.make_samples(trained(), ['d [MASK]'], folder=None)
  assert [(card.prompt, card.truth) for card in found] == [('d [MASK]', None), ('a [MASK] c', 'b')]
  (words, probability), = found[1].candidates
  assert words == glm_infill.fill_blanks(trained(), ['d [MASK]', 'a [MASK] c'],
                                         GenerationConfig(max_new=8))[1][0]
  np.testing.assert_allclose(
    probability, np.exp(glm_infill.score_blanks(trained(), [('a [MASK] c', words)])[0]), rtol=1e-5
  )
