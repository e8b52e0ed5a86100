import jax
import pytest
import tiny

from plm_jax import recipes, tokenizers
from plm_jax.config.run import Phase
from plm_jax.runs import pretrain
from plm_jax.tokenizers import wordpiece
from plm_jax.training.compile_ahead import CompileAhead
from plm_jax.training.train import train
from plm_jax.validation import with_paths

BERT = recipes.find_recipe('bert_base')


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  folder = tmp_path_factory.mktemp('ahead')
  (folder / 'corpus.txt').write_text(tiny.text())
  return pretrain.prepare_pretraining(with_paths(BERT('test'), {
      'data.path': (str(folder / 'corpus.txt'),), 'train.phases': (Phase(4, 32, 8),),
      'optim.warmup': 2,
      'output': str(folder / 'run')}))


@pytest.mark.parametrize('blanks', [False, True])
def test_a_vocabulary_is_known_before_it_is_trained(blanks):
  trained = tokenizers.train_wordpiece(tiny.text().split('\n'), 2048, blanks=blanks)
  assert wordpiece.expected_vocab(2048, blanks) == trained.vocab


@pytest.mark.release
@pytest.mark.slow
def test_a_run_calls_the_programs_that_were_compiled_ahead(prepared, tmp_path, caplog):
  def run(name, ahead):
    config = with_paths(prepared.config, {'output': str(tmp_path / name)})
    caplog.clear()
    with jax.log_compiles():  # of this thread
      result = train(config, prepared.open_feed, prepared.tokenizer, ahead=ahead)
    compiled = [f for f in ('train_step', 'jit(step)', '<lambda>') if f'XLA compilation of {f}'
                in caplog.text
                or f'XLA compilation of jit({f})' in caplog.text]
    return result, compiled

  vocab = prepared.tokenizer.vocab
  usual, compiled = run('usual', None)
  assert compiled == ['train_step', 'jit(step)', '<lambda>']
  same, compiled = run('ahead', CompileAhead(prepared.config, vocab))
  assert compiled == []
  tiny.assert_same(usual.params, same.params)
  assert usual.heldout == same.heldout


def test_programs_of_another_vocabulary_are_not_used(prepared):
  ahead = CompileAhead(prepared.config, wordpiece.expected_vocab(1000))
  assert ahead.finish(prepared.tokenizer.vocab) is None
  assert ahead.cancelled.is_set()
  ahead.thread.join()


def test_errors_of_the_background_compilation_print_no_traceback(prepared, capfd):
  ahead = CompileAhead(with_paths(prepared.config, {'model.vocab': 50}), prepared.tokenizer.vocab)
  assert ahead.finish(prepared.tokenizer.vocab) is None
  assert 'Traceback' not in capfd.readouterr().err


def test_new_runs_of_the_laptop_scale_compile_ahead(tmp_path, monkeypatch):
  monkeypatch.setattr(pretrain, 'CompileAhead', lambda config, vocab: vocab)
  laptop = with_paths(BERT('laptop'), {'output': str(tmp_path / 'run')})
  assert pretrain.start_compiling(laptop) == wordpiece.expected_vocab(4096)
  for changes in ({'scale': 'test'}, {'data.prepare.kind': 'byte-bpe'},
                  {'data.prepare.tokenizer': 'some'},
                  {'warm_start': 'some'}):
    assert pretrain.start_compiling(with_paths(laptop, changes)) is None
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run/config.json').write_text('{}')
  assert pretrain.start_compiling(laptop) is None


def test_unreadable_text_cancels_the_compilation(tmp_path, monkeypatch):
  started = []
  class Started:
    cancelled = False
    def __init__(self, config, vocab):
      started.append(self)
    def cancel(self):
      self.cancelled = True
  monkeypatch.setattr(pretrain, 'CompileAhead', Started)
  missing = with_paths(BERT('laptop'), {'data.path': (str(tmp_path / 'none.txt'),),
                                        'output': str(tmp_path / 'run')})
  with pytest.raises(Exception, match='no files match'):
    pretrain.prepare_pretraining(missing)
  assert started[0].cancelled
