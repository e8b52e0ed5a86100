"""Probing of layers, compared with a hand-made classifier, and attention statistics on hand-made
attention."""
import base64
import struct
import zlib

import backbones
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plm_jax
from plm_jax.cli import commands
from plm_jax.cli import probing as drawing
from plm_jax.config.run import ConfigError
from plm_jax.evaluation import attention_maps, probing
from plm_jax.evaluation.attention_maps import HeadStatistics
from plm_jax.evaluation.probing import LayerProbe, ProbeConfig, TaggedSentences
from plm_jax.inference import encode, token_features
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.sources.lines import SourceError
from plm_jax.tokenizers import train_byte_bpe, train_wordpiece

SENTENCES = [('a', 'quickish', 'fox'), ('the', 'lazy', 'dog', 'jumps'), ('foxes',)]


def model(family: str) -> LoadedModel:
  texts = ['a quick brown fox jumps over the lazy dog']
  tokenizer = train_byte_bpe(texts, 280,
                             layout='gpt2') if family == 'gpt2' else train_wordpiece(texts, 80)
  bare = LoadedModel(family, backbones.small(family, tokenizer.vocab.size, 32), {}, {}, tokenizer)
  return LoadedModel(family, bare.model, {}, {'backbone': probing.init_random_params(bare, 0)},
                     tokenizer)


@pytest.fixture(scope='module')
def bert() -> LoadedModel:
  return model('bert')


@pytest.mark.parametrize('family', ['bert', pytest.param('xlnet', marks=pytest.mark.slow),
                                    pytest.param('albert', marks=pytest.mark.slow)])
def test_the_vector_of_a_word_is_the_mean_of_its_tokens(family):
  trained = model(family)
  found, rows = token_features.word_layers(trained, SENTENCES), token_features.build_rows(
      trained, SENTENCES)
  assert [len(row.starts) - 1 for row in rows] == [3, 4, 1]
  for layer in range(3):
    tokens = encode.encode(trained, [' '.join(some) for some in SENTENCES], layer, 'none')
    for row, states, vectors in zip(rows, tokens, found, strict=True):
      for word, (begin, end) in enumerate(zip(row.starts[:-1], row.starts[1:], strict=True)):
        np.testing.assert_allclose(vectors[layer, word], states[begin:end].mean(0), atol=1e-6)


def test_long_sentences_keep_all_words(bert):
  long = [('fox', 'dog') * 20]
  assert len(token_features.build_rows(bert, long)) > 1
  found, = token_features.word_layers(bert, long)
  assert found.shape == (3, 40, 32)
  # for example a URL: it is one unknown word
  row, = token_features.build_rows(bert, [('fox' * 1000, 'dog')])
  assert len(row.starts) == 3


def test_a_linear_classifier_learns_only_linear_labels():
  draw = np.random.default_rng(0)
  x, y = draw.normal(size=(600, 8)).astype(np.float32), draw.normal(size=(300, 8)).astype(
      np.float32)
  plane = draw.normal(size=(8, 3))
  def right(tags_x, tags_y):
    config = ProbeConfig(epochs=20, batch=32, rate=5e-2)
    tags = np.array(tags_x, np.int32), np.array(tags_y, np.int32)
    return probing.train_and_test(config, (x, y), tags, 3, seed=1)
  assert right((x @ plane).argmax(1), (y @ plane).argmax(1)) > 0.95
  assert right(draw.integers(0, 3, 600), draw.integers(0, 3, 300)) == pytest.approx(1 / 3, abs=0.08)


def test_the_majority_baseline_and_control_tags(bert):
  train = TaggedSentences([('a', 'fox'), ('a', 'dog'), ('the', 'fox')], [(0, 1), (0, 1), (0, 2)])
  test = TaggedSentences([('a', 'fox', 'jumps')], [(0, 2, 1)])
  # fox has a tie, and 1 came first; jumps is unseen, and 0 is the most common.
  assert probing.majority_baseline(train, test) == pytest.approx(1 / 3)
  given = probing.make_control_tags([train, test], 3, seed=4)
  assert given[0][0] == given[0][2] == given[1][0] and given[0][1] == given[0][5] == given[1][1]
  found = probing.probe(bert, train, test, ProbeConfig(seeds=2, epochs=2, batch=4))
  assert [layer.layer for layer in found.layers] == [0, 1, 2] and found.words == (6, 3)
  assert all(len(some) == 2 for layer in found.layers
             for some in (layer.accuracy, layer.control, layer.untrained))
  assert LayerProbe(1, (0.5, 0.7), (0.2, 0.4), (0.1, 0.1)).selectivity == pytest.approx(0.3)
  with pytest.raises(ConfigError, match='no words to learn from'):
    probing.probe(bert, TaggedSentences([], []), test)


def test_shares_of_attention_made_by_hand():
  """[CLS] a b [SEP]: the first head looks at itself, the second one back, the third at all
  alike."""
  back = np.zeros((4, 4))
  back[1, 0] = back[2, 1] = back[3, 2] = back[0, 0] = 1
  by_hand = np.stack([np.eye(4), back, np.full((4, 4), 0.25)])[None]
  sums = attention_maps.sum_statistics(by_hand, 1, 3) / 2
  np.testing.assert_allclose(sums[:, 0], [
      [1, 0, 0.25], [0, 0.5, 0.125], [0, 0, 0.125], [0, 0.5, 0.5], [0, 0, 1], [0, 0.5, 0.5]],
      atol=1e-6)
  assert HeadStatistics(1, 1, (0.9, 0.05, 0, 0.05), 0.2, 0).role == 'itself'
  assert (
    HeadStatistics(1, 1, (0.1, 0.1, 0.1, 0.3), 0.95, 3).role == 'broad'
    and HeadStatistics(1, 1, (0.1,) * 4, 0.5, 3).role == ''
  )


def test_attention_of_a_decoder_is_causal():
  heads, maps = plm_jax.attention(model('gpt2'), [' '.join(some) for some in SENTENCES], maps=2)
  assert len(heads) == 4 and len(maps) == 2
  for one in maps:
    assert one.attention.shape == (2, 2, len(one.pieces), len(one.pieces))
    np.testing.assert_allclose(one.attention.sum(-1), 1, atol=1e-5)
    assert (np.triu(one.attention, 1) == 0).all()
  assert all(head.shares[2] == 0 for head in heads)
  with pytest.raises(ConfigError, match='nothing to look at'):
    plm_jax.attention(model('gpt2'), ' ')


def test_images_are_valid_png_files():
  address = drawing.png_data_url(np.array([[0.0, 1.0, 0.5], [2.0, -1.0, 0.2]]))
  data = base64.b64decode(address.partition('base64,')[2])
  assert data[:8] == b'\x89PNG\r\n\x1a\n' and struct.unpack('>II', data[16:24]) == (3, 2)
  body = data[data.index(b'IDAT') + 4:data.index(b'IEND') - 8]
  assert zlib.decompress(body) == bytes([0, 255, 0, 128, 0, 0, 255, 204])


def test_commands(bert, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr('plm_jax.api.models.load', lambda *_: bert)
  tagged = tmp_path / 'train.conll'
  tagged.write_text('a DET\nfox NOUN\n\nthe DET\ndog NOUN\njumps VERB\n')
  def typed(*args):
    monkeypatch.setattr('sys.argv', ['plm_jax', *map(str, args)])
    commands.main()
    return capsys.readouterr().out
  said = typed('probe', 'run', tagged, tagged, '--seeds=1', '--epochs=30', '--batch=2',
               f'--page={tmp_path}/p.html')
  assert (
    'accuracy on 5 words, trained on 5, 1 seeds; majority baseline, the most frequent tag of each '
    'word: 100.0%' in said
  )
  assert [line.split()[0] for line in said.splitlines() if '%'
          in line][1:] == ['embeddings', 'layer', 'layer']
  assert 'control task' in (tmp_path / 'p.html').read_text()
  lines = tmp_path / 'lines.txt'
  lines.write_text('a fox\nthe lazy dog\na dog jumps\n')
  said = typed('attention', 'run', lines, '--limit=2', f'--page={tmp_path}/a.html', '--maps=1')
  assert [line.split()[0] for line in said.splitlines()[2:6]] == ['1.1', '1.2', '2.1', '2.2']
  page = (tmp_path / 'a.html').read_text()
  assert page.count('<img') == 4 and 'img-src data:' in page  # without which a browser shows none
  untagged = tmp_path / 'other.conll'
  untagged.write_text('a X\n')
  with pytest.raises(SourceError, match='X'):
    plm_jax.probe(bert, str(tagged), str(untagged))


def test_fresh_parameters_are_others_with_another_seed(bert):
  first, again, other = (probing.init_random_params(bert, seed) for seed in (0, 0, 1))
  def alike(some, others):
    return [bool(jnp.array_equal(x, y))
            for x, y in zip(jax.tree.leaves(some), jax.tree.leaves(others), strict=True)]
  assert all(alike(first, again)) and not all(alike(first, other))
