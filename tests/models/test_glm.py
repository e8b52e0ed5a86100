"""GLM: sizes and parameters as published, and blank infilling."""
import functools
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.config.run import ConfigError, PretrainRun
from plm_jax.conversion import ConvertError, attributes, files
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.models import families, glm
from plm_jax.objectives import corruption
from plm_jax.objectives import glm as glm_objective
from plm_jax.objectives.glm import BlankInfilling
from plm_jax.objectives.row_builders import FullSentences
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training.learner import make_learner

CASE = pathlib.Path(__file__).parents[1] / 'golden' / 'glm' / 'blank_infilling_2d'
VOCAB = Vocab(size=96, pad=0, unk=1, cls=2, sep=3, mask=4, sop=90, eop=91, gmask=92, smask=93)


@pytest.mark.parametrize(('size', 'millions', 'layers', 'width', 'rows'), [
    ('base', 110, 12, 768, 513), ('large', 335, 24, 1024, 513), ('glm_410m', 410, 30, 1024, 513),
    ('glm_515m', 515, 30, 1152, 513), ('glm_2b', 1920, 36, 2048, 1025),
    ('glm_10b', 9881, 48, 4096, 1025)])
def test_parameters_as_published(size, millions, layers, width, rows):
  """The table of the released models; 2B and 10B are rounded there."""
  config = getattr(glm, size)()
  shapes = families.parameter_shapes(glm.FAMILY, config, {})
  total = sum(map(math.prod, shapes.values()))
  by_hand = config.vocab * width + 2 * rows * width + layers * (
      12 * width ** 2 + 13 * width) + 2 * width
  assert total == by_hand and abs(total / 1e6 / millions - 1) < 0.01
  assert (config.stack.layers, config.block.width, config.block.head_dim) == (layers, width, 64)


@pytest.fixture(scope='module')
def model():
  config = DecoderConfig(vocab=96, block=tiny.block(norm_at='pre', norm=dict(eps=1e-5)),
                         stack=StackConfig(2),
                         max_length=48, types=48)
  objective = BlankInfilling()
  model = ModelWithHeads(config.backbone(), objective.heads(config))
  windows = tiny.windows(4, objective.text_length(48), shortest=30)
  windows['tokens'] = np.where(windows['segments'] > 0, 5 + windows['tokens'] % 80, 0)
  batch = jax.device_get(jax.jit(lambda w: objective.corrupt(jax.random.key(0), w, VOCAB))(windows))
  params = tiny.random_params(jax.eval_shape(model.init, jax.random.key(0), batch)['params'])
  return model, params, batch


@pytest.mark.slow
def test_part_a_ignores_part_b_and_part_b_attends_to_earlier_tokens(model):
  """By the gradient of every position's output with respect to every token's embedding: exactly
  zero, or not."""
  model, params, batch = model
  row = {name: jnp.asarray(x[:1]) for name, x in batch.items() if name != 'positions'}
  size, length = (batch['segments'][0] > 0).sum(), batch['tokens'].shape[1]
  # Each position has a separate embedding, so its gradient is the gradient of that position.
  table = params['backbone']['embeddings']['tokens'][row['tokens'][0]]

  @jax.jit
  def felt(table):
    def hidden(table):
      table = jnp.pad(table, ((0, 96 - length), (0, 0)))
      own = params['backbone'] | {'embeddings': params['backbone']['embeddings']
                                  | {'tokens': table}}
      output = model.backbone.apply({'params': own}, row | {'tokens': jnp.arange(length)[None]})
      return output.hidden[0].sum(-1) + (output.hidden[0] ** 2).sum(-1)
    return jnp.abs(jax.jacrev(hidden)(table)).sum(-1)

  got = np.asarray(felt(table)) > 0
  ranks = batch['ranks'][0]
  want = (ranks[None, :] <= ranks[:, None])[:size, :size]
  assert (ranks[:size] == 0).sum() > 10 and (ranks[:size] > 0).sum() > 4
  np.testing.assert_array_equal(got[:size, :size], want)
  assert not got[:size, size:].any()


@pytest.mark.slow
def test_both_positions_matter(model):
  model, params, batch = model
  run = jax.jit(lambda batch: model.apply({'params': params}, batch)['lm'])
  want, weighed = run(batch), batch['weights'] > 0
  for name in ('place', 'types'):
    other = run({**batch, name: np.where(batch['ranks'] > 0, batch[name] // 2, batch[name])})
    assert np.abs(np.asarray(other - want))[weighed].max() > 0.01


def test_a_glm_checkpoint_is_preserved_to_the_bit(tmp_path):
  """The original's names and types."""
  imported = conversion.load(CASE)
  assert imported.config.types == imported.config.max_length == 41 and list(imported.heads) == [
      'lm']
  conversion.save(tmp_path / 'out', imported.config, imported.params, like=imported)
  theirs, ours = (files.SafeTensorsFolder(folder) for folder in (CASE, tmp_path / 'out'))
  assert theirs.tensors == ours.tensors
  for name in theirs.tensors:
    np.testing.assert_array_equal(theirs.read(name), ours.read(name))
  said = files.read_json(tmp_path / 'out' / 'config.json')
  assert said['model_type'] == 'glm' and said['max_sequence_length'] == 40 and said[
      'block_position_encoding'] is True
  assert not {'rows', 'block_rows', 'inner'} & said.keys()
  assert conversion.load(tmp_path / 'out').config == imported.config


def test_one_table_of_positions():
  given = {'max_sequence_length': 40, 'block_position_encoding': False}
  config = attributes.parse_hf_config(glm.FAMILY, glm.FAMILY.normalize_hf_config(given))
  assert (config.max_length, config.types) == (40, 0)
  assert attributes.build_hf_attributes(glm.FAMILY, config)['max_sequence_length'] == 40


def test_the_configuration_of_a_file_without_one():
  tensors = files.SafeTensorsFolder(CASE).tensors | {
      'word_embeddings.weight': ((53, 128), 'F16'),
      'transformer.position_embeddings.weight': ((41, 128), 'F16')}
  assert glm.infer_hf_config(tensors) == dict(
      model_type='glm', vocab_size=53, hidden_size=128, num_layers=2, num_attention_heads=2,
      block_position_encoding=True, max_sequence_length=40)
  with pytest.raises(ConvertError,
                     match=r'no checkpoint of GLM: it has no tensor word_embeddings\.weight'):
    glm.infer_hf_config({'transformer.position_embeddings.weight': ((41, 128), 'F16')})


def test_another_model_of_the_same_name_is_refused():
  with pytest.raises(ConvertError, match='GLM of 2024'):
    glm.FAMILY.normalize_hf_config({'model_type': 'glm', 'num_hidden_layers': 40,
                                    'partial_rotary_factor': 0.5})
  with pytest.raises(ConvertError, match='relative_encoding is True'):
    attributes.parse_hf_config(
      glm.FAMILY, glm.FAMILY.normalize_hf_config({'model_type': 'glm', 'relative_encoding': True})
    )


MASKS = VOCAB.mask, VOCAB.smask, VOCAB.gmask
MIXED = BlankInfilling(sentences=0.3, documents=0.4)
TOGETHER = BlankInfilling(pair=FullSentences(), sentences=0.3, documents=0.4)
APART = BlankInfilling(pair=FullSentences(together=False), sentences=0.3, documents=0.4)


@functools.cache
def corrupted(objective, rows=256, length=64):
  """Windows whose ids are below those of the blanks; those with FullSentences hold two
  documents."""
  windows = tiny.windows(rows, objective.text_length(length), seed=3)
  windows['tokens'] = np.where(windows['segments'] > 0, 5 + windows['tokens'] % 80,
                               0).astype(np.int32)
  if objective.pair != BlankInfilling().pair:
    windows['segments'] += ((windows['sentences'] > 2) & (windows['segments'] > 0)).astype(np.int32)
  corrupt = jax.jit(lambda key, w: objective.corrupt(key, w, VOCAB))
  return windows, jax.device_get(corrupt(jax.random.key(5), windows))


def infill(tokens, spans, mask=VOCAB.mask, length=16, most=8):
  starts, sizes = (jnp.array(x) for x in zip(*spans, strict=True))
  tokens = jnp.array(tokens)
  row = jax.jit(lambda t: glm_objective.infill(
      t, jnp.ones_like(t), glm_objective.BlankSpans(starts, sizes, mask), length, most,
      VOCAB))(tokens)
  return {name: np.asarray(x).tolist() for name, x in row.items()}


def test_the_papers_example():
  """Du et al. 2022, figure 2: of x1 to x6, x3 and x5 x6 are blanks, of which the longer is written
  first."""
  row = infill([11, 12, 13, 14, 15, 16], [(4, 2), (2, 1), (0, 0)], length=12, most=6)
  assert row == dict(
      tokens=[11, 12, 4, 14, 4, 90, 15, 16, 90, 13, 0, 0],
      place=[0, 1, 2, 3, 4, 4, 4, 4, 2, 2, 0, 0],  # from 0 here
      types=[0, 0, 0, 0, 0, 1, 2, 3, 1, 2, 0, 0],
      ranks=[0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0],
      segments=[1] * 10 + [0, 0],
      positions=[5, 6, 7, 8, 9, 10], labels=[15, 16, 91, 13, 91, 0], weights=[1, 1, 1, 1, 1, 0])


def test_the_end_of_the_text_is_written_last_and_nothing_behind_it():
  row = infill([2, 11, 12, 13, 0], [(2, 3), (0, 0)], mask=92, length=8, most=4)
  assert row['tokens'] == [2, 11, 92, 90, 12, 13, 0, 0] and row['segments'] == [1] * 7 + [0]
  assert row['labels'] == [12, 13, 0, 0] and row['weights'] == [1, 1, 1, 0]


def test_neighbouring_blanks_stay_two():
  row = infill([2, 11, 12, 13, 0], [(2, 2), (1, 1)], mask=93, length=10, most=5)
  assert row['tokens'] == [2, 93, 93, 0, 90, 12, 13, 90, 11, 0]
  assert row['place'] == [0, 1, 2, 3, 2, 2, 2, 1, 1, 0]


def test_lengths_are_poisson_without_empty_spans():
  lengths = np.array(BlankInfilling().lengths)
  assert len(lengths) == 39 and abs(lengths.sum() - 1) < 1e-9
  assert abs(lengths @ np.arange(1, 40) - 3 / (1 - np.exp(-3))) < 1e-6


def test_fixed_keys_give_fixed_spans():
  documents = jnp.array([0] + [1] * 12 + [0] + [2] * 5 + [0])
  draw = jax.jit(lambda seed: glm_objective.draw_short_spans(jax.random.key(seed), documents, 6,
                                                   jnp.array([3, 2, 4, 1, 1])))
  assert [np.stack(draw(seed)).tolist() for seed in range(3)] == [
      [[2, 7, 15, 0, 0], [3, 2, 4, 0, 0]], [[1, 9, 17, 0, 0], [4, 3, 2, 0, 0]],
      [[2, 9, 14, 0, 0], [4, 2, 3, 0, 0]]]


@pytest.mark.slow
@pytest.mark.parametrize('objective', [BlankInfilling(), MIXED, TOGETHER, APART],
                         ids=['short', 'mixed', 'together', 'apart'])
def test_part_a_with_its_spans_is_the_text(objective):
  """Whatever the text; and the labels are what is read one place later."""
  windows, batch = corrupted(objective)
  for row in range(len(batch['tokens'])):
    real = windows['segments'][row] > 0
    text = list(windows['tokens'][row][real])
    tokens, types, places, ranks, segments = (
        batch[name][row] for name in ('tokens', 'types', 'place', 'ranks', 'segments'))
    size = (segments > 0).sum()
    if not text:
      assert size == 0 and not batch['weights'][row].any()
      continue
    a, b = np.flatnonzero(ranks[:size] == 0), np.flatnonzero(ranks[:size] > 0)
    assert (types[a] == 0).all() and (types[b] > 0).all() and (places[a] == a).all()
    assert (ranks[b] == 1 + np.arange(len(b))).all()
    spans = {}
    for slot in b:
      if types[slot] == 1:
        assert tokens[slot] == VOCAB.sop and tokens[places[slot]] in MASKS
        spans[places[slot]] = current = []
        number = 1
      else:
        number += 1
        assert types[slot] == number
        current.append(tokens[slot])
    assert sorted(spans) == [slot for slot in a if tokens[slot] in MASKS]
    whole = [token for slot in a for token in (spans[slot] if slot in spans else [tokens[slot]])]
    assert whole[0] == VOCAB.cls and whole[-1] == VOCAB.pad
    if objective.pair == BlankInfilling().pair:
      assert whole[1:-1] == text
    else:
      kept = [token for token in whole[1:] if token != VOCAB.pad]
      assert kept == text[:len(kept)] and len(kept) >= len(text) - 2
    weighed = batch['weights'][row] > 0
    for position, label in zip(batch['positions'][row][weighed], batch['labels'][row][weighed],
                               strict=True):
      last = position + 1 == size or types[position + 1] == 1
      assert label == (VOCAB.eop if last else tokens[position + 1])
    assert weighed.sum() == len(b) - (tokens[b] == VOCAB.pad).sum()


@pytest.mark.slow
def test_spans_see_their_own_document_where_documents_are_apart():
  _, batch = corrupted(APART)
  assert batch['segments'].max() == 2
  for segments, places, ranks in zip(*(batch[name] for name in ('segments', 'place', 'ranks')),
                                     strict=True):
    b = ranks > 0
    assert (segments[b] == segments[places[b]]).all()
  _, batch = corrupted(TOGETHER)
  assert batch['segments'].max() == 1


@pytest.mark.slow
def test_kinds_of_blanks():
  """Long ones are at least half of the text, sentences are whole, and short ones are parted by
  text."""
  windows, batch = corrupted(MIXED, rows=512)
  kinds = {mask: 0 for mask in MASKS}
  for row, (tokens, types) in enumerate(zip(batch['tokens'], batch['types'], strict=True)):
    size = (windows['segments'][row] > 0).sum()
    found = [mask for mask in MASKS if (tokens[types == 0] == mask).any()]
    if size < 8:
      continue
    (mask,) = found
    kinds[mask] += 1
    a = np.isin(tokens, MASKS) & (types == 0)
    hidden = ((types > 1) & (tokens != VOCAB.pad)).sum()
    if mask == VOCAB.gmask:
      assert a.sum() == 1 and round(size / 2) <= hidden <= size
    elif mask == VOCAB.smask:
      sizes = np.bincount(windows['sentences'][row])[1:]
      widths = np.diff([*np.flatnonzero(types == 1), (batch['segments'][row] > 0).sum()]) - 1
      assert set(widths) <= set(sizes) and hidden >= int(0.15 * (size + 2))
    else:
      assert not (a[1:] & a[:-1]).any()
  shares = np.array([kinds[mask] for mask in (VOCAB.mask, VOCAB.smask, VOCAB.gmask)]) / sum(
      kinds.values())
  np.testing.assert_allclose(shares, [0.3, 0.3, 0.4], atol=0.07)


def test_rates_of_the_released_code():
  """480 rows of 128 there: 16.1% of the tokens, 6.50 spans a row (its own statistics, to two
  digits)."""
  objective = BlankInfilling()
  def draw(key):
    span_key, length_key = jax.random.split(key)
    lengths = corruption.draw_lengths(length_key, objective.lengths, (objective.max_spans(128),))
    return glm_objective.draw_short_spans(span_key, jnp.ones(126, int), 19, lengths)
  starts, sizes = jax.device_get(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 4000)))
  assert abs(sizes.sum(1).mean() / 128 - 0.161) < 0.002 and abs(
      (sizes > 0).sum(1).mean() - 6.50) < 0.07
  assert sizes.sum(1).min() == 19
  # No place is special.
  hidden = np.zeros(126)
  for first, size in zip(starts.ravel(), sizes.ravel(), strict=True):
    hidden[first:first + size] += 1
  middle = hidden[20:-20] / 4000
  assert middle.std() < 0.1 * middle.mean()


@pytest.mark.slow
def test_rows_are_as_long_as_asked_for():
  for objective in (BlankInfilling(), MIXED, TOGETHER):
    for length in (32, 64, 128, 512, 1024):
      assert objective.row_length(objective.part_a_length(length)) == length
      assert objective.text_length(length) < objective.part_a_length(length) < length
    _, batch = corrupted(objective)
    assert batch['tokens'].shape[1] == 64 and batch['labels'].shape[1] == objective.max_predictions(
        64)


@pytest.mark.slow
def test_the_same_example_in_another_batch():
  windows, batch = corrupted(MIXED)
  part = tiny.take(windows, np.array([7, 3]))
  again = jax.jit(lambda w: MIXED.corrupt(jax.random.key(5), w, VOCAB))(part)
  tiny.assert_same(again, tiny.take(batch, np.array([7, 3])))


def test_a_tokenizer_without_blanks_is_refused():
  with pytest.raises(ConfigError,
                     match=r'special tokens that the tokenizer does not have: sop, eop.*layout '
                           r'glm'):
    make_learner(PretrainRun('glm', objective=BlankInfilling()), tiny.VOCAB)
  with pytest.raises(ValueError, match='shares of the rows'):
    BlankInfilling(sentences=0.6, documents=0.6)
