# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 7. Before you rent a pod
#
# What would a run take, on which pod, with which mesh? The TPU compiler answers on any machine, no TPU needed: it is in
# the package `libtpu`. Then the launch is rehearsed. About five minutes on two CPU cores.

# %% Install: a minute on Colab, nothing where all is there already
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

NEEDS = ['matplotlib']


def install(*packages):
  subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', *packages], check=True)


if importlib.util.find_spec('plm_jax') is None:
  here = pathlib.Path.cwd()
  wheels = sorted(map(str, here.glob('plm_jax-*.whl')))
  checkouts = [str(folder) for folder in (here, here.parent) if (folder / 'plm_jax' / 'api.py').exists()]
  source = os.environ.get('PLM_JAX_SOURCE') or next(iter([*wheels, *checkouts]), '')  # PLM_JAX_SOURCE: git+https://...
  assert source, 'upload plm_jax-*.whl to this folder, or set PLM_JAX_SOURCE to the address of its repository'
  chips = ['jax[cuda13]'] * bool(shutil.which('nvidia-smi')) + ['jax[tpu]'] * os.path.exists('/dev/vfio/0')
  install(source, *chips)
if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
  install(*missing)

SCALE = os.environ.get('PLM_JAX_NOTEBOOK_SCALE', 'laptop')  # laptop: minutes on two cores; test: seconds

# %%
import dataclasses
import importlib.metadata

import matplotlib.pyplot as plt

import plm_jax
from plm_jax.cli import costs
from plm_jax.config import Phase
from plm_jax.pods import compile as pods
from plm_jax.sharding import MeshConfig
from plm_jax.training.metrics import PEAK_FLOPS

# %% [markdown]
# ## How much arithmetic
#
# Steps times rows times what the model computes for a row. Divided by the peak of the chips, and by the share of it that
# a good run makes use of (0.4 is assumed), it is hours: the figure to ask a grant for.

# %%
PODS = {'TPU v3': 16, 'TPU v4': 16, 'TPU v5e': 16, 'TPU v6e': 16, 'NVIDIA A100': 8, 'NVIDIA H100': 8}
chosen = ('bert_base', 'bert_large', 'electra_small', 'roberta_base', 'gpt2_small', 't5_small')
totals = {}
for name in chosen:
  config = plm_jax.recipe(name)
  totals[name] = sum(phase.steps * costs.flops(config, phase) for phase in config.train.phases)
  print(f'{name:14} {config.train.steps:>9,} steps, {totals[name]:.2g} FLOPs')
figure, axis = plt.subplots(figsize=(10, 3.4))
for number, name in enumerate(chosen):
  days = [totals[name] / (PEAK_FLOPS[kind] * (2 if kind == 'TPU v3' else 1) * many * costs.ASSUMED) / 86_400
          for kind, many in PODS.items()]
  axis.bar([place + number / 8 for place in range(len(PODS))], days, width=1 / 8, label=name)
axis.set(yscale='log', ylabel='days', xticks=[place + 0.3 for place in range(len(PODS))],
         xticklabels=[f'{many} x {kind}' for kind, many in PODS.items()], title='Published runs, at 40% of the peak')
axis.legend(fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
plt.tight_layout()
plt.show()

# %% [markdown]
# ## The compiler's answer
#
# The step of BERT-base, compiled for sixteen v5e chips, under three meshes: rows divided among all (`data`), parameters
# and optimizer divided too (`fsdp`), matrix products divided (`tensor`). The first time the compiler is installed, the
# version that belongs to this JAX.

# %%
TOPOLOGY = 'v5e:4x4'
MESHES = {'data=16': MeshConfig(16), 'fsdp=16': MeshConfig(1, fsdp=16), 'fsdp=4 tensor=4': MeshConfig(1, fsdp=4, tensor=4)}
if SCALE == 'laptop' and importlib.util.find_spec('libtpu') is None:
  install(f'jax[tpu]=={importlib.metadata.version("jax")}')
paper = plm_jax.recipe('bert_base', scale='paper' if SCALE == 'laptop' else 'test')
reports = {}
if importlib.util.find_spec('libtpu'):
  phases = Phase(900_000, 128 if SCALE == 'laptop' else 32, 256),
  for title, mesh in MESHES.items():
    config = dataclasses.replace(paper, mode='compile', topology=TOPOLOGY, mesh=mesh,
                                 train=dataclasses.replace(paper.train, phases=phases))
    reports[title], = pods.compile_run(config)
    print()

# %% [markdown]
# ## Reading the roofline
#
# Three bounds: what the chip has to compute, to move between itself and its memory, and to send to others. A step takes
# the longest of them at the least. Where `network` is the longest, the mesh is wrong; where `memory` is, more rows a
# device or less rematerialisation would help; `compute` is what you pay for.

# %%
kind, _ = costs.pod(TOPOLOGY)
if reports:
  figure, axes = plt.subplots(1, 2, figsize=(11, 3.2))
  for number, part in enumerate(('compute', 'memory', 'network')):
    axes[0].bar([place + number / 4 for place in range(len(reports))],
                [1000 * report.bounds[part] for report in reports.values()], width=1 / 4, label=part)
  axes[0].set(title='A step takes at least (ms)', xticks=[place + 0.25 for place in range(len(reports))],
              xticklabels=[*reports])
  axes[0].legend()
  axes[1].bar([*reports], [report.total / 2**30 for report in reports.values()], color='#93c47d')
  axes[1].axhline(pods.CHIPS[kind].hbm, color='#e06666', linestyle=':')
  axes[1].set(title='GiB a chip; dotted: what it has')
  plt.show()
  best = min(reports, key=lambda title: reports[title].bound)
  step = reports[best].bound
  print(f'{best}: {step * 1000:.1f} ms a step at the least, {step * 900_000 / 3600:.1f} hours for 900,000 steps')
else:
  best = 'data=16'
  print('without the compiler nothing is known of memory and network: pip install "jax[tpu]"')

# %% [markdown]
# `python -m plm_jax train NAME --mode=compile --topology=v5e:4x4 --search` compiles all the meshes that make sense and
# names the best.
#
# ## The launch, rehearsed
#
# `scripts/tpu.sh resume` makes the pod, installs the code, runs, begins again after a preemption, and deletes the pod at
# the end. `--dry-run` prints every command that it would give, and does nothing. It is in a checkout of the project, and
# needs no account for this.

# %%
mesh = MESHES[best]
options = [f'--mesh.{axis}={getattr(mesh, axis)}' for axis in ('data', 'fsdp', 'tensor') if getattr(mesh, axis) > 1]
command = ['resume', 'mine', 'us-west4-a', 'v5e-16', '--spot', '--queued', '--dry-run', 'python', '-m', 'plm_jax', 'train',
           'bert_base', '--hosts.distributed=True', '--data.path=gs://BUCKET/records', '--output=gs://BUCKET/mine', *options]
found = [folder / 'scripts/tpu.sh' for folder in (pathlib.Path(plm_jax.__file__).parents[1], pathlib.Path.cwd())]
script = next((str(path) for path in found if path.exists()), '')
if script:
  print(subprocess.run([script, *command], check=True, capture_output=True, text=True).stdout)

# %% [markdown]
# ## Yours: the command, to be typed without `--dry-run` when there is a pod to rent

# %%
line = ' '.join(['scripts/tpu.sh', *(word for word in command if word != '--dry-run')])
pathlib.Path('runs').mkdir(exist_ok=True)
pathlib.Path('runs/launch.sh').write_text(f'#!/usr/bin/env bash\n{line}\n')
print(line)
