"""Output of the evaluation commands, with a small model instead of a checkpoint."""
import json

import jax
import jax.numpy as jnp
import pytest
import tiny

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.cli import evaluation as evaluation_commands
from plm_jax.config.run import ConfigError
from plm_jax.evaluation.few_shot import FewShotConfig
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.loading import loaded_model
from plm_jax.loading.loaded_model import LoadedModel
from plm_jax.objectives.clm import CausalLM
from plm_jax.sharding import MeshConfig, shardings
from plm_jax.tokenizers import train_byte_bpe

ROWS = [{'question': f'the {animal}', 'choices': ['sat', 'on the mat'], 'label': number % 2}
        for number, animal in enumerate(('cat', 'dog', 'rat', 'hat', 'bat', 'cow'))]


@pytest.fixture(autouse=True)
def trained(monkeypatch):
  tokenizer = train_byte_bpe(['the cat sat on the mat, and the dog on the cat'] * 9, 280)
  cfg = DecoderConfig(tokenizer.vocab.size, tiny.block(norm_at='pre'), StackConfig(1),
                      max_length=16)
  heads = CausalLM().heads(cfg)
  batch = {name: jnp.ones((1, 8), jnp.int32) for name in ('tokens', 'segments')}
  shapes = jax.eval_shape(ModelWithHeads(cfg.backbone(), heads).init, jax.random.key(0), batch)
  params = tiny.random_params(shapes['params'])
  def load(folder, mesh):
    return LoadedModel('gpt2', cfg, heads,
                       jax.device_put(params, shardings(shapes['params'], mesh)), tokenizer)
  monkeypatch.setattr(loaded_model, 'load_model', load)


@pytest.fixture
def data(tmp_path):
  (tmp_path / 'rows.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in ROWS))
  return str(tmp_path / 'rows.jsonl')


@pytest.mark.slow
def test_perplexity(tmp_path, capsys):
  (tmp_path / 'a.txt').write_text('the cat sat on the mat, and the dog too ' * 3)
  evaluation_commands.perplexity_command('run', str(tmp_path / 'a.txt'), length=8, stride=4)
  out = capsys.readouterr().out.splitlines()
  evaluation_commands.perplexity_command('run', str(tmp_path / 'a.txt'), length=8, stride=4,
                                         mesh=MeshConfig(2, 2, 2))
  again = capsys.readouterr().out.splitlines()
  assert [again[0], again[-1]] == [out[0], out[-1]]
  assert out[0].endswith('tokens, 30 words, 120 bytes')
  assert [line[:20].strip() for line in out[1:]] == [
      'perplexity per token', 'perplexity per word', 'perplexity per byte', 'bits per byte']


def test_few_shot(data, tmp_path, capsys):
  evaluation_commands.few_shot_command(
      'run', 'piqa', str(tmp_path / 'out.jsonl'), settings=FewShotConfig(data, shots=1, limit=4))
  out = capsys.readouterr().out.splitlines()
  assert out[0] == 'piqa, 1 shots, 4 questions'
  assert out[2] == 'guessing            50.00%'
  assert 'predictions in' in out[-1]
  predictions = [json.loads(line) for line in (tmp_path / 'out.jsonl').read_text().splitlines()]
  assert len(predictions) == 4
  assert all(x['right'] == (x['chosen'] == x['label']) and len(x['logprobs']) == 2
             for x in predictions)
  assert float(out[1].split()[1].rstrip('%')) == 25 * sum(x['right'] for x in predictions)
  assert all(x['prompt'].count('\n\n') == 1 for x in predictions)


def test_truncated_prompts_are_reported(tmp_path, capsys):
  (tmp_path / 'a.jsonl').write_text(json.dumps({'text': 'the cat sat on the mat ' * 9}) + '\n')
  evaluation_commands.few_shot_command('run', 'lambada',
                                       settings=FewShotConfig(str(tmp_path / 'a.jsonl')))
  out = capsys.readouterr().out
  assert 'perplexity' in out and '1 prompts were too long and lost their beginning' in out


def test_no_data():
  with pytest.raises(ConfigError, match='commonsense-qa has no data set in TFDS: give --data'):
    evaluation_commands.few_shot_command('run', 'commonsense-qa')


def test_a_template(data, tmp_path):
  evaluation_commands.few_shot_command(
      'run', 'multiple-choice', str(tmp_path / 'o.jsonl'),
      settings=FewShotConfig(data, template='Q {question} A'))
  assert json.loads((tmp_path / 'o.jsonl').read_text().splitlines()[0])['prompt'] == 'Q the cat A'
