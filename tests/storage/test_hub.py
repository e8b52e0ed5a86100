"""Names of the Hugging Face hub in place of folders, with the real client and a server on this
machine. A run that names models of the hub pins each to its commit."""
import dataclasses
import os
import pathlib
import subprocess
import sys

import hub_server
import jax
import jax.numpy as jnp
import pytest
import tiny

from plm_jax import conversion, recipes, storage
from plm_jax.config import serialization
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.report import model_card
from plm_jax.runs import run as runs
from plm_jax.storage import hub
from plm_jax.tasks.embedding_losses import GuidedInBatch, TeacherVectors
from plm_jax.tokenizers import train_wordpiece

ROOT = str(pathlib.Path(__file__).parents[2])
LOAD = ('from plm_jax import conversion\n'
        'for name in sys.argv[1:]: print(conversion.load(name, lazy=True).family)')
FIND = 'from plm_jax.storage import hub\nfor name in sys.argv[1:]: print(hub.find_folder(name))'
UPLOAD = ('import pathlib\nfrom plm_jax.storage import hub\n'
          'print(hub.upload(pathlib.Path("out"), sys.argv[1], False, "", "Upload"))')
TOKENIZER = 'from plm_jax import tokenizers\nprint(tokenizers.load(sys.argv[1]).kind)'
FAULTS = {
    'gated': (hub_server.Fault(401, headers={'X-Error-Code': 'GatedRepo'}),
              'is gated: ask for access at'),
    '403': (hub_server.Fault(403), 'refuses access to org/bert (403)'),
    '429': (hub_server.Fault(429), 'limits requests (429)'),
    '500': (hub_server.Fault(500), 'failed on org/bert (status 500): try again later'),
    'missing file': (hub_server.Fault(404, 'model.safetensors'),
                     'org/bert is on the Hugging Face hub, but the hub'),
    'missing entry': (hub_server.Fault(404, 'config.json',
                                       headers={'X-Error-Code': 'EntryNotFound'}),
                      'does not find one of its files (status 404: '),
    'short': (hub_server.Fault('short', 'model.safetensors', after=100),
              'the download of org/bert broke off'),
    'corrupt': (hub_server.Fault('corrupt', 'model.safetensors'),
                'model.safetensors was damaged on its way')}


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """A small BERT as on the hub: with weights in two formats and files that nobody here needs."""
  folder = tmp_path_factory.mktemp('hub') / 'bert'
  tokenizer = train_wordpiece(tiny.text().splitlines()[:300], 300)
  model = tiny.config(layers=1)
  model = type(model)(**{**model.__dict__, 'vocab': tokenizer.vocab.size})
  module = ModelWithHeads(model.backbone(), {'mlm': conversion.build_head('bert', 'mlm', model, 2)})
  zeros = jax.ShapeDtypeStruct((1, 8), jnp.int32)
  shapes = jax.eval_shape(module.init, jax.random.key(0),
                          {'tokens': zeros, 'segments': zeros})['params']
  conversion.save(folder, model, tiny.random_params(shapes), tokenizer, like='bert')
  found = {path.name: path.read_bytes() for path in folder.iterdir()}
  more = {'pytorch_model.bin': b'bin', 'flax_model.msgpack': b'flax', 'onnx/model.onnx': b'o',
          'README.md': b'r',
          'trainer_state.json': b'{}', 'model.fp16.safetensors': b'half'}
  return {**found, **more}


@pytest.fixture
def server(files):
  with hub_server.Hub() as found:
    found.add('org/bert', files)
    yield found


def newest(server):
  return server.repositories['models', 'org/bert'].branches['main']


def run(server, folder, code, *names, **more):
  """Run code in a new process; return its output and its last error."""
  environment = {**os.environ, 'PYTHONPATH': ROOT, **server.environment(folder / 'cache'), **more}
  done = subprocess.run([sys.executable, '-c', f'import sys\n{code}', *names], cwd=folder,
                        env=environment,
                        capture_output=True, text=True, timeout=100)
  return done.stdout.strip(), (done.stderr.strip().splitlines() or [''])[-1]


def needed(files):
  return sorted(name for name in files if name in (
      'config.json', 'model.safetensors', 'special_tokens_map.json', 'tokenizer.json',
      'tokenizer_config.json',
      'vocab.txt'))


def test_only_the_required_files_are_downloaded(server, files, tmp_path):
  assert run(server, tmp_path, LOAD, 'org/bert', 'org/bert')[0] == 'bert\nbert'
  assert server.downloads() == needed(files)
  requests = [path for _, path in server.requests]
  assert requests[:2] == ['/api/models/org/bert', f'/api/models/org/bert/tree/{newest(server)}']
  assert len(requests) == 2 + 2 * len(needed(files))  # HEAD and GET
  assert sum(server.sent.values()) == sum(len(files[name]) for name in needed(files))

  server.forget()
  assert run(server, tmp_path, LOAD, 'org/bert')[0] == 'bert'
  assert server.requests == [('GET', '/api/models/org/bert')]  # is there a new commit?
  server.forget()
  assert run(server, tmp_path, LOAD, f'org/bert@{newest(server)}') == ('bert', '')
  assert run(server, tmp_path, LOAD, 'org/bert', HF_HUB_OFFLINE='1') == ('bert', '')
  assert not server.requests


@pytest.mark.parametrize('case', FAULTS)
def test_errors_are_one_line_and_leave_no_partial_files(case, server, tmp_path):
  fault, message = FAULTS[case]
  server.faults.append(dataclasses.replace(fault))
  out, error = run(server, tmp_path, FIND, 'org/bert')
  assert not out
  assert error.startswith('plm_jax.storage.hub_client.HubError: ')
  assert message in error
  assert not list(tmp_path.rglob('*.incomplete'))
  server.forget()
  # the same command works once the cause is gone
  assert 'org--bert' in run(server, tmp_path, FIND, 'org/bert')[0]


FOREIGN = {
    'html': (hub_server.Fault('html', '/api/'),
             "(expected JSON, got '<html>Log in</html>'): check HF_ENDPOINT"),
    'endless': (hub_server.Fault('endless', '/api/'), 'sends an answer without an end'),
    'endless file': (hub_server.Fault('endless', 'vocab.txt', 'GET'),
                     'sends an answer without an end'),
    'etag': (hub_server.Fault('headers', 'vocab.txt',
                              headers={'X-Linked-Etag': '"../../../outside"'}),
             'header X-Linked-Etag is'),
    'commit': (hub_server.Fault('headers', '/resolve/', headers={'X-Repo-Commit': '../../outside'}),
               'header X-Repo-Commit is'),
    'silent': (hub_server.Fault('silent', '/api/'), 'the Hugging Face hub cannot be reached')}


@pytest.mark.parametrize('case', FOREIGN)
def test_responses_that_are_not_from_a_hub_are_errors(case, server, tmp_path):
  fault, message = FOREIGN[case]
  server.faults.append(dataclasses.replace(fault))
  out, error = run(server, tmp_path, FIND, 'org/bert', HF_HUB_DOWNLOAD_TIMEOUT='1')
  assert not out
  assert error.startswith('plm_jax.storage.hub_client.HubError: ')
  assert message in error
  assert not list(tmp_path.rglob('outside*'))


@pytest.mark.parametrize('status', [429, 503])
def test_a_refusal_that_passes_is_tried_again(status, server, tmp_path):
  server.faults.append(hub_server.Fault(status, '/api/models/org/bert', times=2))
  assert run(server, tmp_path, FIND, 'org/bert')[0]


@pytest.mark.parametrize('name', ['config.json', 'vocab.txt'])
def test_files_of_an_interrupted_download_are_checked(name, server, files, tmp_path):
  server.faults += [hub_server.Fault('corrupt', f'/{name}', 'GET'),
                    hub_server.Fault(404, 'model.safetensors', following=name)]
  assert not run(server, tmp_path, FIND, 'org/bert')[0]
  server.forget()
  for need in ('tokenizer', 'model'):
    code = FIND.replace('(name)', f'(name, {need!r})')
    out, error = run(server, tmp_path, code, 'org/bert')
    assert (not out and f'{name} was damaged on its way' in error) == (need == 'tokenizer')
  assert all(path.read_bytes() == files[name]
             for path in tmp_path.glob(f'cache/**/snapshots/*/{name}'))


def test_names_and_revisions_that_do_not_exist(server, files, tmp_path):
  server.add('org/secret', files, private=True)
  old = newest(server)
  server.add('org/bert', {**files, 'config.json': b'{}'}, branch='v2')
  unknown = ('is no local folder, and no public model on the Hugging Face hub: check the name; a '
             'private model needs')
  for name in ('org/other', 'other', 'org/secret'):
    assert unknown in run(server, tmp_path, FIND, name)[1]
  assert 'org/bert on the Hugging Face hub has no revision v9' in run(server, tmp_path, FIND,
                                                                      'org/bert@v9')[1]
  assert run(server, tmp_path, FIND, 'org/secret', HF_TOKEN=server.token)[0]
  found = run(server, tmp_path, FIND, 'org/bert@v2', 'hf://org/bert@main',
              f'org/bert@{old}')[0].splitlines()
  assert found[0] != found[1] == found[2]
  assert found[1].endswith(old)


def test_no_network_and_offline(server, tmp_path):
  away = {'HF_ENDPOINT': 'http://127.0.0.1:9'}  # the port of nobody
  error = run(server, tmp_path, FIND, 'org/bert', **away)[1]
  assert (
      'org/bert is no local folder, and the Hugging Face hub cannot be reached at '
      'http://127.0.0.1:9') in error
  error = run(server, tmp_path, FIND, 'org/bert', HF_HUB_OFFLINE='1')[1]
  assert 'and HF_HUB_OFFLINE is set: unset it to download' in error
  folder = run(server, tmp_path, FIND, 'org/bert')[0]
  assert run(server, tmp_path, FIND, 'org/bert', **away)[0] == folder
  assert run(server, tmp_path, FIND, 'org/bert', HF_HUB_OFFLINE='1')[0] == folder


def test_an_interrupted_download_continues(server, files, tmp_path):
  server.faults.append(hub_server.Fault('short', 'model.safetensors', after=100))
  assert 'broke off' in run(server, tmp_path, FIND, 'org/bert')[1]
  server.forget()
  # files are read several at a time
  kept = {path.name for path in tmp_path.glob('cache/**/snapshots/*/*')}
  assert 'config.json' in kept
  assert run(server, tmp_path, LOAD, 'org/bert')[0] == 'bert'
  assert server.downloads() == [name for name in needed(files) if name not in kept]


def test_two_processes_download_once(server, files, tmp_path):
  environment = {**os.environ, 'PYTHONPATH': ROOT, **server.environment(tmp_path / 'cache')}
  both = [subprocess.Popen([sys.executable, '-c', f'import sys\n{FIND}', 'org/bert'], cwd=tmp_path,
                           env=environment,
                           stdout=subprocess.PIPE, text=True) for _ in range(2)]
  first, second = [process.communicate(timeout=100)[0] for process in both]
  assert first == second != ''
  assert server.sent['model.safetensors'] == len(files['model.safetensors'])


def test_a_tokenizer_alone(server, files, tmp_path):
  assert run(server, tmp_path, TOKENIZER, 'org/bert')[0] == 'wordpiece'
  assert 'model.safetensors' not in server.downloads()
  assert 'tokenizer.json' in server.downloads()


def test_a_local_folder_wins(server, files, tmp_path):
  (tmp_path / 'org' / 'bert').mkdir(parents=True)
  (tmp_path / 'org' / 'bert' / 'config.json').write_bytes(files['config.json'])
  out, error = run(server, tmp_path, FIND, 'org/bert')
  assert out == 'org/bert'
  assert error == (
      'org/bert is read from the local folder of that name; hf://org/bert is the model of the '
      'Hugging '
                   'Face hub')
  assert not server.requests
  assert newest(server) in run(server, tmp_path, FIND, 'hf://org/bert')[0]


@pytest.mark.parametrize('path', [
    'runs/bert_base', './bert', '/data/bert', '~/bert', 'a/b/c', 'gs://bucket/run', 'vocab.txt',
    'tests/bert', '',
    '../bert', 'model.ckpt', 'runs/x/tokenizer'])
def test_paths_are_no_names(path):
  assert hub.parse_name(path) is None


@pytest.mark.parametrize(('text', 'name'), [
    ('gpt2', ('gpt2', '')), ('google-bert/bert-base-uncased',
                             ('google-bert/bert-base-uncased', '')),
    ('org/m@v1.0', ('org/m', 'v1.0')), ('hf://org/m@refs/pr/1', ('org/m', 'refs/pr/1')),
    ('sentence-transformers/all-MiniLM-L6-v2', ('sentence-transformers/all-MiniLM-L6-v2', ''))])
def test_names(text, name):
  assert hub.parse_name(text) == name


def test_datasets_are_no_models():
  with pytest.raises(hub.HubError, match='is no model of the Hugging Face hub'):
    hub.parse_name('hf://datasets/org/data/a.jsonl')


def test_selected_files():
  pooled = ['config.json', 'modules.json', '1_Pooling/config.json', '2_Dense/config.json',
            '2_Dense/model.safetensors',
            '2_Dense/pytorch_model.bin', 'config_sentence_transformers.json', 'onnx/model.onnx',
            'openvino/config.json']
  shards = ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors',
            'model.safetensors.index.json']
  assert hub.select_files([*pooled, *shards, 'pytorch_model.bin']) == sorted(
      [*pooled[:5], pooled[6], *shards])
  assert hub.select_files(['config.json', 'pytorch_model.bin', 'tf_model.h5',
                           'flax_model.msgpack']) == [
      'config.json', 'pytorch_model.bin']
  original = ['bert_config.json', 'bert_model.ckpt.data-00000-of-00001', 'bert_model.ckpt.index',
              'vocab.txt']
  assert hub.select_files([*original, 'README.md']) == original
  adapter = ['adapter_config.json', 'adapter_model.safetensors', 'tokenizer.json']
  assert hub.select_files(adapter) == adapter


def push(server, folder, *arguments, **more):
  environment = {**os.environ, 'PYTHONPATH': ROOT,
                 **server.environment(folder / 'cache', token=True), **more}
  done = subprocess.run([sys.executable, '-m', 'plm_jax', 'push', *arguments], cwd=folder,
                        env=environment,
                        capture_output=True, text=True, timeout=100)
  return done.stdout.strip(), done.stderr.strip()


def test_a_dry_run_of_push_lists_files_and_readers(server, tmp_path):
  out, _ = push(server, tmp_path, 'org/bert', 'org/draft', '--dry-run')
  assert 'model.safetensors' in out and ' bytes  config.json' in out
  assert out.splitlines()[-1] == (
      'org/draft on the Hugging Face hub: only you and your organization could read it. '
      'Nothing was uploaded')
  assert ('models', 'org/draft') not in server.repositories


def test_push_and_load(server, files, tmp_path):
  out, error = push(server, tmp_path, 'org/bert', 'org/mine', '--message=First', '--revision=v1')
  assert error.splitlines()[1:] == []  # one line about the download
  assert out == f'{server.url}/org/mine (private): add language and license to its model card'
  mine = server.repositories['models', 'org/mine']
  assert mine.private
  assert mine.messages[-1] == 'First'
  uploaded = server.files('org/mine', branch='v1')
  assert uploaded['model.safetensors'] == files['model.safetensors']
  assert list(server.files('org/mine')) == ['.gitattributes']  # the main branch is as it was
  assert run(server, tmp_path, LOAD, 'org/mine@v1', HF_TOKEN=server.token)[0] == 'bert'
  assert push(server, tmp_path, 'org/bert', 'org/open',
              '--public')[0].startswith(f'{server.url}/org/open (public)')
  assert not server.repositories['models', 'org/open'].private


def upload_error(server, folder, name='org/new', **more):
  (folder / 'out').mkdir(exist_ok=True)
  (folder / 'out' / 'config.json').write_text('{}')
  more = {'HF_TOKEN': server.token, **more}
  out, error = run(server, folder, UPLOAD, name, **more)
  assert not out
  return error.removeprefix('plm_jax.storage.hub_client.HubError: ')


def test_errors_of_push(server, tmp_path):
  assert upload_error(server, tmp_path,
                      HF_TOKEN='').startswith(
                          'push needs an account of the Hugging Face hub: log in')
  nothing = 'the Hugging Face hub did not take org/new, nothing was uploaded; '
  assert upload_error(server, tmp_path, HF_TOKEN='hf_other') == (
      f'{nothing}its token is not valid: log in again with `hf auth login`')
  error = upload_error(server, tmp_path, HF_ENDPOINT='http://127.0.0.1:9')
  assert error == f'{nothing}it cannot be reached: check the network and HF_HUB_OFFLINE'
  assert upload_error(server, tmp_path,
                      'a/b/c').startswith("'a/b/c' is no name of a model of the Hugging Face hub")
  assert upload_error(server, tmp_path, 'org/bert') == (
      'org/bert exists and is public: push with public, or to another name')
  server.add('org/closed', {'README.md': b''}, private=True)
  code = UPLOAD.replace('False', 'True')
  error = run(server, tmp_path, code, 'org/closed', HF_TOKEN=server.token)[1]
  assert 'org/closed exists and is private: push without public, or make it public' in error
  server.faults.append(hub_server.Fault(403, '/api/repos/create'))
  assert upload_error(server, tmp_path).startswith(f'{nothing}its token may not write there: ')
  server.faults[:] = [hub_server.Fault(400, '/commit/')]
  assert upload_error(server, tmp_path).startswith(f'{nothing}status 400: ')
  assert list(server.files('org/new')) == ['.gitattributes']


OLD, NEW = 'a' * 40, 'b' * 40


@pytest.fixture
def config(tmp_path, monkeypatch):
  """A run that starts from org/bert, which has a new commit on the hub."""
  monkeypatch.setattr(hub, 'resolve_commit',
                      lambda name: name.revision if len(name.revision) == 40 else NEW)
  run = recipes.find_recipe('bert_base')('test')
  return dataclasses.replace(run, warm_start='org/bert', output=str(tmp_path / 'run'))


def test_a_new_run_takes_the_newest_commit(config):
  assert runs.pin_hub_names(config).warm_start == f'org/bert@{NEW}'
  named = dataclasses.replace(config, warm_start=f'org/bert@{OLD}')
  assert runs.pin_hub_names(named).warm_start == f'org/bert@{OLD}'
  forced = dataclasses.replace(config, warm_start='hf://org/bert')
  assert runs.pin_hub_names(forced).warm_start == f'org/bert@{NEW}'


def test_a_run_that_resumes_keeps_its_commit(config):
  begun = dataclasses.replace(config, warm_start=f'org/bert@{OLD}')
  storage.write(f'{config.folder}/config.json', serialization.dump(begun))
  assert runs.pin_hub_names(config).warm_start == f'org/bert@{OLD}'
  other = dataclasses.replace(config, warm_start='org/other')
  assert runs.pin_hub_names(other).warm_start == f'org/other@{NEW}'
  branch = dataclasses.replace(config, warm_start='org/bert@v2')
  assert runs.pin_hub_names(branch).warm_start == f'org/bert@{NEW}'


def test_paths_stay(config, tmp_path):
  for path in ('', str(tmp_path), 'runs/bert_base', 'gs://bucket/run'):
    assert runs.pin_hub_names(dataclasses.replace(config, warm_start=path)).warm_start == path


def test_the_tokenizer_of_the_text_is_pinned_as_well(config):
  text = dataclasses.replace(config.data.prepare, tokenizer='gpt2')
  config = dataclasses.replace(config, warm_start='',
                               data=dataclasses.replace(config.data, prepare=text))
  assert runs.pin_hub_names(config).data.prepare.tokenizer == f'gpt2@{NEW}'


@pytest.mark.parametrize('loss', [
    TeacherVectors(teacher='org/teacher'), GuidedInBatch(guide='org/guide')])
def test_teacher_and_guide_of_sentence_vectors_are_pinned(loss, config, tmp_path):
  del config  # it sets the commits
  run = recipes.finetune.recipe('embedding', scale='test')
  run = dataclasses.replace(run, objective=dataclasses.replace(run.objective, vector_loss=loss),
                            output=str(tmp_path / 'vectors'))
  pinned = runs.pin_hub_names(run).objective.vector_loss
  assert str(pinned) == str(loss).replace("'org/teacher'", f"'org/teacher@{NEW}'").replace(
      "'org/guide'", f"'org/guide@{NEW}'")


def test_the_model_card_names_the_model(config):
  run = recipes.finetune.recipe('classification', scale='test')
  run = dataclasses.replace(run, warm_start=f'org/bert@{OLD}')
  exported = model_card.ExportedModel('bert', ('predict',), 1000)
  card = model_card.render_card(run, {}, exported)
  assert 'pipeline_tag: text-classification\nbase_model: org/bert\n' in card
  local = dataclasses.replace(run, warm_start='runs/bert')
  assert 'base_model' not in model_card.render_card(local, {}, exported)
