"""Against transformers itself, where it and torch are installed; nothing else needs them."""
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from plm_jax import conversion
from plm_jax.conversion import tokenizer_files
from plm_jax.tokenizers import BertNormalization, WordPiece
from plm_jax.tokenizers.wordpiece import SPECIALS

pytest.importorskip('safetensors')
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TEXT = ['The quick brown fox, jumps over the lazy dog!', 'naïve café — déjà vu', '自然语言处理 很有趣',
        'a 中文 b', '',
        'x' * 101 + ' y', 'It is [MASK] today.', 'tabs\tand\u3000wide spaces', '１２３ ４',
        'ﬁne Ünïcode \u0000 end']
SIZES = dict(
    hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=40,
    max_position_embeddings=64)
CLASSES = {
    'AutoModelForPreTraining': {'mlm': 'prediction_logits', 'nsp': 'seq_relationship_logits'},
    'AutoModelForMaskedLM': {'mlm': 'logits'},
    'AutoModelForNextSentencePrediction': {'nsp': 'logits'}}


@pytest.fixture(scope='module')
def tokenizer():
  letters = sorted({c for line in TEXT for c in line.lower() if not c.isspace()
                    and c.isprintable()})
  words = ['the', 'quick', 'fox', 'jump', 'over', 'dog', 'to', '##day', 'nai', '##ve', 'caf']
  return WordPiece([*SPECIALS, *words, *letters, *(f'##{letter}' for letter in letters)])


def theirs(tokenizer, **changes):
  torch.manual_seed(0)
  config = transformers.BertConfig(vocab_size=tokenizer.vocab.size, **SIZES, **changes)
  model = transformers.BertForPreTraining(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  return model


def logits(model, batch):
  """Of a model of transformers."""
  with torch.no_grad():
    outputs = model(input_ids=torch.tensor(batch['tokens']),
                    attention_mask=torch.tensor(batch['segments']),
                    token_type_ids=torch.tensor(batch['types']))
  return {name: x.numpy() for name, x in outputs.items()}


def ours(imported, batch):
  model = imported.model()
  with jax.default_matmul_precision('highest'):
    return jax.jit(lambda params: model.apply({'params': params}, batch))(imported.params)


@pytest.fixture(scope='module')
def batch(tokenizer):
  draw = np.random.default_rng(0)
  tokens, segments = draw.integers(5, tokenizer.vocab.size, (3, 20)), np.ones((3, 20), np.int64)
  segments[1, 12:] = segments[2, 5:] = 0
  return {'tokens': tokens, 'segments': segments, 'types': draw.integers(0, 2, (3, 20))}


@pytest.mark.parametrize('changes', [{}, {'hidden_act': 'gelu_new', 'layer_norm_eps': 1e-6}],
                         ids=['gelu', 'gelu_new'])
def test_in(tmp_path, tokenizer, batch, changes):
  model = theirs(tokenizer, **changes)
  model.save_pretrained(tmp_path)
  imported = conversion.load(tmp_path)
  got, want = ours(imported, batch), logits(model, batch)
  np.testing.assert_allclose(got['mlm'], want['prediction_logits'], atol=1e-4)
  np.testing.assert_allclose(got['nsp'], want['seq_relationship_logits'], atol=1e-4)


@pytest.mark.parametrize('shard', [5 << 30, 20_000], ids=['whole', 'sharded'])
def test_out(tmp_path, tokenizer, batch, shard):
  theirs(tokenizer).save_pretrained(tmp_path / 'in', max_shard_size='20KB')
  imported = conversion.load(tmp_path / 'in')
  conversion.save(tmp_path / 'out', imported.config, imported.params, tokenizer, shard_bytes=shard)
  want = ours(imported, batch)
  for cls, outputs in CLASSES.items():
    model, loading = getattr(transformers, cls).from_pretrained(
        tmp_path / 'out', local_files_only=True, output_loading_info=True)
    assert not loading['missing_keys']
    got = logits(model.eval(), batch)
    for name, output in outputs.items():
      np.testing.assert_allclose(got[output], want[name], atol=1e-4)


@pytest.mark.parametrize('left_out', ['', 'tokenizer.json', 'vocab.txt'])
@pytest.mark.parametrize(
  'text', [BertNormalization(), BertNormalization(lowercase=False),
           BertNormalization(strip_accents=False)], ids=str
)
def test_tokenizer(tmp_path, tokenizer, text, left_out):
  """Each of the two files alone is sufficient, in both libraries."""
  mine = WordPiece(tokenizer.pieces, text)
  config = conversion.get_family('bert').config
  tokenizer_files.save(tmp_path, mine, config.max_length)
  if left_out:
    (tmp_path / left_out).unlink()
  (tmp_path / 'config.json').write_text('{"model_type": "bert"}')
  want = [[mine.vocab.cls, *mine.encode(line, specials=True), mine.vocab.sep] for line in TEXT]
  assert transformers.AutoTokenizer.from_pretrained(tmp_path,
                                                    local_files_only=True)(TEXT)[
                                                        'input_ids'] == want
  back = tokenizer_files.load(tmp_path)
  assert back.pieces == mine.pieces
  assert [back.encode(line) for line in TEXT] == [mine.encode(line) for line in TEXT]


def test_tokenizer_in(tmp_path, tokenizer):
  """What transformers writes is read."""
  tokenizer.save(tmp_path / 'a')
  their = transformers.BertTokenizer.from_pretrained(tmp_path / 'a')
  their.save_pretrained(tmp_path / 'b')
  mine = tokenizer_files.load(tmp_path / 'b')
  got = [[mine.vocab.cls, *mine.encode(line, specials=True), mine.vocab.sep] for line in TEXT]
  assert got == their(TEXT)['input_ids']


def test_without_torch():
  """The converter never imports it."""
  code = ('import sys, plm_jax.conversion, plm_jax.inference.fill_mask; '
          'sys.exit(bool({"torch", "transformers"} & set(sys.modules)))')
  subprocess.run([sys.executable, '-c', code], check=True, cwd=pathlib.Path(__file__).parents[2])
