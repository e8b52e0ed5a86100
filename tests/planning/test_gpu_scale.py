"""Runs with scale gpu on this CPU: they end on time, and a run that resumes is the same."""
import os
import random
import signal
import time

import jax
import numpy as np
import pytest

from plm_jax import recipes, validation
from plm_jax.config.run import ConfigError, Phase
from plm_jax.loading.loaded_model import load_model, read_config
from plm_jax.planning import fit
from plm_jax.planning.devices import present_device
from plm_jax.planning.timing import StepTimes
from plm_jax.runs.run import run
from plm_jax.tokenizers import train_byte_bpe
from plm_jax.training import feed

SMALL = {
    'model.stack.layers': 1, 'model.block.width': 32, 'model.block.heads': 2,
    'model.block.mlp_dim': 64, 'train.keep': 2}


@pytest.fixture(scope='module')
def text(tmp_path_factory) -> str:
  """Documents of random sentences with a vocabulary of 300 words, about 150,000 words."""
  draw, path = random.Random(0), tmp_path_factory.mktemp('text') / 'text.txt'
  words = [''.join(draw.choices('abcdefgh', k=5)) for _ in range(300)]
  sentences = (' '.join(draw.choices(words, k=12)) + '.' for _ in range(12_000))
  path.write_text(''.join(
      f'{sentence}\n\n' if number % 10 == 9 else f'{sentence}\n'
      for number, sentence in enumerate(sentences)))
  return str(path)


def make_run(text: str, output, hours: float):
  values = {**SMALL, 'data.path': (text,), 'output': str(output), 'hours': hours}
  return validation.with_paths(recipes.find_recipe('bert_tiny')('gpu'), values)


def give_times(monkeypatch, seconds: float, compiling: float = 0.0) -> None:
  """Let steps take `seconds`, without measuring them, and be compiled in `compiling` seconds."""
  monkeypatch.setattr(fit, 'measure_run', lambda config: {
      phase: StepTimes(seconds + compiling, seconds) for phase in config.train.phases})


@pytest.mark.slow
def test_a_run_that_resumes_is_not_measured_again_and_equals_an_undisturbed_one(
    text, tmp_path, monkeypatch):
  give_times(monkeypatch, 10 * 3600 * fit.STEP_SHARE / 12)
  assert run(make_run(text, tmp_path / 'a', 10)).step == 12

  batches = feed.stream_batches
  def stop_at_five(*arguments):
    for step, phase, windows in batches(*arguments):
      if step == 5:
        os.kill(os.getpid(), signal.SIGTERM)
      yield step, phase, windows
  config = make_run(text, tmp_path / 'b', 10)
  with monkeypatch.context() as patch:
    patch.setattr(feed, 'stream_batches', stop_at_five)
    assert not run(config).finished
  monkeypatch.setattr(fit, 'measure_run', lambda config: pytest.fail('measured again'))
  assert run(config).step == 12

  one, other = (load_model(tmp_path / name).params for name in 'ab')
  assert jax.tree.all(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), one, other))
  written = read_config(tmp_path / 'b')
  assert (written.scale, written.hours) == ('gpu', 10)
  assert [phase.steps for phase in written.train.phases] == [11, 1]
  assert written.model.vocab == 4096 and written.model.block.dtype == 'float32'


@pytest.mark.slow
@pytest.mark.release  # it measures time, and needs a machine without other work
def test_a_run_ends_on_time(text, tmp_path):
  """Within 10% on a quiet machine; other load between measurement and training changes more."""
  hours, started = 0.03, time.monotonic()
  result = run(make_run(text, tmp_path, hours))
  assert result.finished
  assert 0.7 * 3600 * hours < time.monotonic() - started < 1.2 * 3600 * hours


@pytest.fixture
def layout(text, tmp_path):
  """A run whose batch is fitted, and whose steps are still those of the paper."""
  config = make_run(text, tmp_path, 0.1)
  device = present_device(jax.devices())
  return fit.start_fit(config, device, 200_000, True)


def test_steps_fill_the_time_that_is_left(layout, monkeypatch):
  give_times(monkeypatch, 0.5)
  fitted = fit.finish_fit(layout, 0, 100.0)
  assert 0.95 * (360 - 101) < 0.5 * fitted.train.steps / 0.99 < 360 - 100
  assert fitted.optim.warmup / fitted.train.steps == pytest.approx(0.01, abs=0.003)
  read = fit.finish_fit(layout, 1000, 100.0).text_tokens  # a text of 1,000 tokens
  assert read <= 41_000 or fitted.train.steps == len(fitted.train.phases)


def test_steps_leave_time_to_compile_what_a_run_needs(layout, monkeypatch):
  give_times(monkeypatch, 0.5)
  at_once = fit.finish_fit(layout, 0, 100.0).train.steps
  give_times(monkeypatch, 0.5, compiling=10.0)
  fewer = at_once - fit.finish_fit(layout, 0, 100.0).train.steps
  seconds = 4 * 10.0 * len(layout.train.phases)
  assert 0.5 * fewer == pytest.approx(0.95 * seconds, abs=2)


def test_hours_that_are_over_before_the_first_step_are_an_error(layout, monkeypatch):
  give_times(monkeypatch, 1.0)
  with pytest.raises(ConfigError, match='over before the first step'):
    fit.finish_fit(layout, 200_000, 360.0)


@pytest.mark.slow
def test_a_decoder_continues_with_another_tokenizer_and_replay(text, tmp_path, monkeypatch):
  """The fit keeps the peak and the vocabulary that are given, and both texts are read."""
  give_times(monkeypatch, 10 * 3600 * fit.STEP_SHARE / 12)
  small = {**SMALL, 'model.vocab': 400, 'hours': 10.0, 'data.prepare.documents': 'blank-lines',
           'train.phases': (Phase(143_000, 64, 8),)}
  base = validation.with_paths(recipes.find_recipe('pythia_14m')('gpu'), {
      **small, 'data.path': (text,), 'output': str(tmp_path / 'base')})
  assert run(base).step == 12
  other = tmp_path / 'other.txt'
  other.write_text('\n\n'.join(f'zzz{n} qqq{n % 7} yyy' for n in range(2000)))
  train_byte_bpe(other.read_text().split('\n\n'), 300, layout='gpt2').save(tmp_path / 'tokenizer')
  again = validation.with_paths(base, {
      'data.path': (str(other), text), 'data.weights': (0.75, 0.25), 'model.vocab': 300,
      'data.prepare.tokenizer': str(tmp_path / 'tokenizer'), 'warm_start': str(tmp_path / 'base'),
      'optim.peak': 1e-4, 'output': str(tmp_path / 'continued')})
  result = run(again)
  fitted = read_config(str(tmp_path / 'continued'))
  assert result.step == 12 and (fitted.optim.peak, fitted.model.vocab) == (1e-4, 300)
  assert load_model(str(tmp_path / 'continued')).tokenizer.vocab.size == 300
  assert {'bits_per_byte/other', 'bits_per_byte/text'} <= result.heldout.keys()
