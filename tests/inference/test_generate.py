"""Text in, text out: prompts of any lengths, stop sequences, streaming, and errors."""
import dataclasses
import io
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.checkpoints.checkpoint import CheckpointError
from plm_jax.cli import commands as command
from plm_jax.cli import generation
from plm_jax.config.run import ConfigError
from plm_jax.inference import generate, prompts
from plm_jax.layers.heads import NextTokenHead
from plm_jax.layers.stack import StackConfig
from plm_jax.loading import loaded_model
from plm_jax.loading.generation_config import GenerationConfig, GenerationDefaults
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.preparation.encode import encode_holes
from plm_jax.preparation.fill_middle import FillMiddle
from plm_jax.preparation.prepare import add_fill_middle_tokens
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.tokenizers import add_special_tokens, train_sentencepiece
from plm_jax.tokenizers.byte_bpe import train_byte_bpe
from plm_jax.tokenizers.contract import FIM_TOKENS

DRAWN = GenerationConfig(24, temperature=1.0)
PROMPTS = ['An array of numbers', 'né à 北京', '']


@pytest.fixture(scope='module')
def tokenizer():
  # Hardly any merges: most tokens are single bytes, and characters beyond ASCII are several.
  return train_byte_bpe(['An array of numbers, né à 北京.', 'Another array of arrays.'] * 4, 280)


@pytest.fixture(scope='module')
def trained(tokenizer):
  config = DecoderConfig(
      tokenizer.vocab.size + 7, tiny.block(norm_at='pre', kv_heads=2), StackConfig(2),
      max_length=64)
  zeros = {name: jnp.zeros((1, 4), jnp.int32) for name in ('tokens', 'segments')}
  shapes = jax.eval_shape(config.backbone().init, jax.random.key(0), zeros)['params']
  params = {'backbone': jax.device_get(tiny.random_params(shapes))}
  return LoadedModel('gpt2', config, {'lm': NextTokenHead(config.block, config.vocab)}, params,
                     tokenizer)


@pytest.fixture(scope='module')
def drawn(trained):
  return [row for row, in generate.generate(trained, PROMPTS, DRAWN, seed=1)]


@pytest.mark.slow
def test_texts_are_their_tokens(trained, drawn, tokenizer):
  for row in drawn:
    assert 0 < len(row.tokens) <= 24 and max(row.tokens) < tokenizer.vocab.size
    assert row.ended == ('end' if row.tokens[-1] == tokenizer.vocab.eos else 'length')
    assert row.text.encode(errors='replace')
  assert len({row.tokens for row in drawn}) == 3
  assert any(len(row.text.encode()) > len(row.text) for row in drawn)


def test_streams_the_same_text_and_no_half_characters(trained, drawn):
  pieces = list(generate.stream(trained, PROMPTS, DRAWN, seed=1))
  assert len(pieces) == max(len(row.tokens) for row in drawn)
  for i, row in enumerate(drawn):
    assert ''.join(piece[i].text for piece in pieces) == row.text
    assert pieces[-1][i].ended == row.ended
    # Incomplete characters are held back until the next token, not streamed in parts.
    before = ''
    for piece in pieces:
      before += piece[i].text
      assert row.text.startswith(before)


def test_a_text_ends_before_the_stop_sequence(trained, drawn):
  stop = drawn[0].text[3:6]
  config = dataclasses.replace(DRAWN, stop=(stop, 'never said'))
  stopped = [row for row, in generate.generate(trained, PROMPTS, config, seed=1)]
  assert stopped[0].ended == 'stop' and stopped[0].text == drawn[0].text[:drawn[0].text.index(stop)]
  for own, other in zip(stopped[1:], drawn[1:], strict=True):
    assert own == other if stop not in other.text else own.text == other.text[
        :other.text.index(stop)]
  *_, last = pieces = list(generate.stream(trained, PROMPTS, config, seed=1))
  assert ''.join(piece[0].text for piece in pieces) == stopped[0].text and last[0].ended == 'stop'


@pytest.mark.parametrize(('text', 'stops', 'expected'), [
    ('ab', (), 'ab'), ('ab\ufffd', (), 'ab'), ('a\ufffdb', (), 'a\ufffdb'), ('ab', ('bc',), 'a'),
    ('ab\n', ('\n\n', 'b\nc'), 'a'), ('abc', ('xa',), 'abc'), ('', ('x',), '')])
def test_what_may_yet_change_is_held_back(text, stops, expected):
  assert generate.stable_prefix(text, stops) == expected


def test_characters_of_several_tokens(tokenizer):
  ids = tokenizer.encode('北京')
  texts = [
    generate.decode_continuation(tokenizer, [], ids[:k], GenerationConfig(), going=True).text
    for k in range(len(ids) + 1)
  ]
  assert texts[-1] == '北京' and len(ids) > 2
  assert [generate.stable_prefix(text, ()) for text in texts][-2] in ('', '北')


@pytest.mark.slow
def test_beams_come_best_first(trained):
  config = GenerationConfig(8, beams=3, number=3, stop=('e',))
  for found in generate.generate(trained, PROMPTS, config):
    scores = [row.score for row in found]
    assert scores == sorted(scores, reverse=True) and len({row.tokens for row in found}) == 3
    assert all('e' not in row.text for row in found)
  with pytest.raises(ConfigError, match='streamed'):
    next(generate.stream(trained, PROMPTS, config))


def test_a_prompt_begins_with_the_start_token(tokenizer):
  vocab = tokenizer.vocab
  assert generate.encode_prompt(tokenizer, 'An', start=True) == [vocab.bos, *tokenizer.encode('An')]
  assert generate.encode_prompt(tokenizer, 'An', start=False) == tokenizer.encode('An')
  assert generate.encode_prompt(tokenizer, '', start=False) == [vocab.bos]


@pytest.fixture(scope='module')
def filling(trained, tokenizer):
  """The model with tokens for filling in the middle."""
  config = TextConfig(kind='byte-bpe', sentences='none', fim_rate=0.5)
  return dataclasses.replace(trained, tokenizer=add_fill_middle_tokens(config, tokenizer))


@pytest.mark.parametrize('order', ['psm', 'spm'])
@pytest.mark.parametrize('kind', ['byte-bpe', 'sentencepiece'])
def test_a_prompt_with_a_hole_is_a_training_text_up_to_its_middle(filling, kind, order):
  tokenizer = filling.tokenizer
  if kind == 'sentencepiece':
    tokenizer = train_sentencepiece(['def f(x): return x', 'né à'] * 9, 300, 'bpe', layout='llama')
    tokenizer = add_special_tokens(tokenizer, list(FIM_TOKENS))
  document, holes = 'def f(x):\n  return  x', FillMiddle(1.0, float(order == 'spm'), seed=3)
  ids, _, _ = encode_holes([document], np.array([False]), tokenizer, holes)
  first, second, _ = holes.sample_cut(document)
  assert 0 < first < second < len(document)
  config = GenerationConfig(hole='<?>', hole_order=order)
  found = prompts.encode_hole(
      tokenizer, f'{document[:first]}<?>{document[second:]}', config)
  assert ids[:len(found)].tolist() == found
  middle = ids[len(found):-1].tolist()
  content = tokenizer.token_bytes
  assert b''.join(content[i] for i in middle).decode() == document[first:second]
  # The text is the middle alone, with its spaces, although special tokens are before it.
  assert generate.decode_continuation(
      tokenizer, found, middle, config, False).text == document[first:second]


def test_a_hole_is_filled_up_to_its_end(filling, capsys):
  vocab, letter = filling.tokenizer.vocab, filling.tokenizer.encode('z')[0]
  barred = tuple(i for i in range(vocab.size) if i not in (vocab.fim_end, letter))
  filling = dataclasses.replace(filling, generation=GenerationDefaults(suppressed_ids=barred))
  config = GenerationConfig(8, temperature=1.0, hole='<?>', number=6)
  found, = generate.generate(filling, ['An <?> of\nnumbers'], config)
  assert {'end'} <= {row.ended for row in found} <= {'end', 'length'}
  for row in found:
    assert row.text == 'z' * (len(row.tokens) - (row.ended == 'end'))
  assert len({row.text for row in found}) > 1
  generation.print_continuations(filling, ('An <?> of\nnumbers',), False, 0, config)
  printed = capsys.readouterr().out
  assert printed == ''.join(f'An {row.text} of\nnumbers\n\n' for row in found)
  streamed = dataclasses.replace(config, number=1)
  generation.print_continuations(filling, ('An <?> of\nnumbers',), True, 0, streamed)
  assert re.fullmatch('An z* of\nnumbers\n', capsys.readouterr().out)


def test_prompts_without_one_hole_are_refused(trained, filling):
  config = GenerationConfig(4, hole='<?>')
  with pytest.raises(ConfigError, match='no tokens for filling in the middle'):
    generate.generate(trained, ['An <?>'], config)
  for prompt in ('An', 'a <?> b <?>', [5, 6]):
    with pytest.raises(ConfigError, match="expected a text with one hole '<\\?>'"):
      generate.generate(filling, [prompt], config)


@pytest.mark.parametrize('ids', [[-1], [5, 10**6], [5.0], [True], ['5'], b'\x05'], ids=repr)
def test_ids_that_no_token_has_are_refused(tokenizer, ids):
  """The model would read the last token for an id beyond its vocabulary, without a word."""
  size = tokenizer.vocab.size
  with pytest.raises(ConfigError, match=f'a list of token ids from 0 to {size - 1}: got '):
    generate.prompt_ids(tokenizer, ids)
  with pytest.raises(ConfigError, match='a list of token ids'):
    generate.prompt_ids(tokenizer, [size])
  assert generate.prompt_ids(tokenizer, np.array([0, size - 1])) == [0, size - 1]


def test_unusable_prompts_and_models_are_refused(trained, tokenizer):
  with pytest.raises(ConfigError, match='has 61 tokens, and max_new is 4: the model takes 64'):
    generate.generate(trained, ['An', 'x' * 60], GenerationConfig(4))
  with pytest.raises(CheckpointError, match='no language model head: text cannot be generated'):
    generate.generate(dataclasses.replace(trained, heads={}), ['An'])
  with pytest.raises(CheckpointError, match='no tokenizer'):
    generate.generate(dataclasses.replace(trained, tokenizer=None), ['An'])
  nothing = dataclasses.replace(tokenizer.vocab, bos=-1, eos=-1, cls=-1, sep=-1)
  class Bare:
    vocab, encode = nothing, tokenizer.encode
  assert generate.encode_prompt(Bare(), 'An', start=True) == tokenizer.encode('An')
  with pytest.raises(ConfigError, match='the prompt is empty'):
    generate.encode_prompt(Bare(), '', start=True)


def test_prompts_of_samples_and_their_references_begin_with_a_word(trained, tokenizer, monkeypatch):
  """Windows can begin anywhere: here after 'An', and inside 'numbers,'."""
  text = tokenizer.encode('An array of numbers, né à 北京. Another array of arrays.')
  class Windows:
    def __init__(self, *args): ...
    def __len__(self):
      return 2
    def read(self, places):
      tokens = np.array([text[begin:begin + 21] for begin in (1, 5)])
      return {'tokens': tokens, 'segments': np.ones_like(tokens)}
  monkeypatch.setattr(generate, 'Windows', Windows)
  monkeypatch.setattr(generate, 'read_meta',
                      lambda folder: types.SimpleNamespace(evaluation_split='heldout'))
  found = generate.sample_heldout_beginnings(trained, 'records', 10, 11, 2)
  assert [(prompt.strip(), truth) for prompt, truth in found] == [
      ('array of numbers, né à', ' 北京. Another array'), ('né à 北京.', ' Another array of arrays.')]
  # No word starts; the only one that does is the first; the last within three tokens of the first.
  assert [
    generate.find_split(np.array(starts, bool), 3)
    for starts in ([0, 0], [1, 0, 0, 0, 1], [0, 1, 1, 0, 1, 1])
  ] == [(0, 0), (0, 0), (1, 4)]


def test_samples_of_chinese_begin_with_a_piece(trained, monkeypatch):
  class Pieces:
    pieces = ('▁', '我们', '▁去', '北京', '，', 'ing', '▁a')
    starts_word = np.array([True, False, True, False, False, False, True])
    def decode(self, ids):
      return ''.join(self.pieces[i] for i in ids).replace('▁', ' ')
  row = np.array([4, 1, 3, 5, 3, 4, 2, 1, 3, 4])
  class Windows:
    def __init__(self, *args): ...
    def __len__(self):
      return 1
    def read(self, places):
      return {'tokens': row[None], 'segments': np.ones_like(row[None])}
  monkeypatch.setattr(generate, 'Windows', Windows)
  monkeypatch.setattr(generate, 'read_meta',
                      lambda folder: types.SimpleNamespace(evaluation_split='heldout'))
  found = generate.sample_heldout_beginnings(dataclasses.replace(trained, tokenizer=Pieces()),
                                             'records', 4, 6, 2)
  assert found == [('我们北京ing', '北京， 去我们北京，')]


def test_all_of_a_text_fits(trained):
  (row,), = generate.generate(trained, ['x' * 59], GenerationConfig(4, min_new=4))
  assert len(row.tokens) == 4 and np.isfinite(row.tokens).all()


@pytest.fixture
def shell(trained, monkeypatch, capsys):
  """Run python -m plm_jax generate with the arguments; return its standard output and its
  errors."""
  monkeypatch.setattr(loaded_model, 'load_model', lambda folder: trained)

  def run(*args, given=''):
    monkeypatch.setattr(sys, 'argv', ['plm_jax', 'generate', 'folder', *args])
    monkeypatch.setattr(sys, 'stdin', io.StringIO(given))
    try:
      command.main()
    except SystemExit as error:
      return '', str(error)
    return capsys.readouterr()
  return run


@pytest.mark.slow
def test_command(shell, trained, tmp_path):
  config = GenerationConfig(6)
  texts = [prompt + found.text for prompt, (found,) in zip(
      ['An', 'x'], generate.generate(trained, ['An', 'x'], config), strict=True)]
  (tmp_path / 'prompts').write_text('An\nx\n')
  expected = ''.join(f'{text}\n\n' for text in texts)
  assert shell('An', 'x', '--max-new=6')[0] == expected
  assert shell(f'--file={tmp_path / "prompts"}', '--max-new=6')[0] == expected
  assert shell('--file=-', '--max-new=6', given='An\nx')[0] == expected
  (alone,), = generate.generate(trained, ['An'], config)
  assert shell('An', '--max-new=6', '--stream') == (f'An{alone.text}\n', '')
  assert 'no stop sequence came in 2 of 2' in shell('An', 'x', '--max-new=6', '--stop',
                                                    'never said')[1]
  assert 'no stop sequence came in 1 of 1' in shell('An', '--max-new=6', '--stream', '--stop',
                                                    'never said')[1]


def test_the_command_reports_wrong_options(shell):
  assert 'there is no prompt' in shell()[1]
  assert 'prints one text' in shell('An', 'x', '--stream')[1]
  assert 'is for sampling: give' in shell('An', '--top-k=3')[1]
  assert 'the model takes 64' in shell('An', '--max-new=64')[1]
