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
# How long does a run take, on which pod, with which mesh? The TPU compiler in the package `libtpu` answers on any machine,
# without a TPU. Then rehearse the launch. The notebook takes about five minutes on two CPU cores.
#
# *To run this notebook in [Colab](https://colab.research.google.com/), choose File > Upload notebook, and upload the
# wheel of plm_jax next to it.*

# %% Install plm_jax if it is missing (one minute in Colab) tags=["hide-input"]
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
  checkouts = [str(folder) for folder in (here, here.parent) if (folder / 'plm_jax' / '__init__.py').exists()]
  source = os.environ.get('PLM_JAX_SOURCE') or next(iter([*wheels, *checkouts]), '')  # a path or git+https://...
  assert source, 'upload plm_jax-*.whl to this folder, or set PLM_JAX_SOURCE to the address of the repository'
  chips = ['jax[cuda13]'] * bool(shutil.which('nvidia-smi')) + ['jax[tpu]'] * os.path.exists('/dev/vfio/0')
  install(source, *chips)
if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
  install(*missing)

SCALE = os.environ.get('PLM_JAX_NOTEBOOK_SCALE', 'laptop')  # laptop: minutes on two CPU cores; test: seconds

# %%
import dataclasses
import importlib.metadata

import matplotlib.pyplot as plt

import plm_jax
from plm_jax.cli import costs
from plm_jax.compile import report as pods
from plm_jax.config.run import Phase
from plm_jax.recipes.scale_presets import count_flops
from plm_jax.sharding import MeshConfig
from plm_jax.training.run_metrics import PEAK_FLOPS

# %% [markdown]
# ## Count the FLOPs
#
# Multiply the number of steps, the batch size and the model FLOPs per sequence. Divide by the peak FLOPs of the chips and
# by the utilization that a good run reaches (0.4 is assumed). The result is the number of hours to apply for.

# %% tags=["hide-input"]
PODS = {'TPU v3': 16, 'TPU v4': 16, 'TPU v5e': 16, 'TPU v6e': 16, 'NVIDIA A100': 8, 'NVIDIA H100': 8}
chosen = ('bert_base', 'bert_large', 'electra_small', 'roberta_base', 'gpt2_small', 't5_small')
totals = {}
for name in chosen:
  config = plm_jax.recipe(name)
  totals[name] = count_flops(config, config.train.phases)
  print(f'{name:14} {config.train.steps:>9,} steps, {totals[name]:.2g} FLOPs')
figure, axis = plt.subplots(figsize=(10, 3.4))
for number, name in enumerate(chosen):
  days = [totals[name] / (PEAK_FLOPS[kind] * (2 if kind == 'TPU v3' else 1) * many * costs.ASSUMED_UTILIZATION) / 86_400
          for kind, many in PODS.items()]
  axis.bar([place + number / 8 for place in range(len(PODS))], days, width=1 / 8, label=name)
axis.set(yscale='log', ylabel='days', xticks=[place + 0.3 for place in range(len(PODS))],
         xticklabels=[f'{many} x {kind}' for kind, many in PODS.items()], title='Published runs, at 40% of the peak')
axis.legend(fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Compile for a pod
#
# Compile the training step of BERT-base for sixteen v5e chips with three meshes: the batch is divided (`data`),
# parameters and optimizer state are divided too (`fsdp`), or matrix products are divided (`tensor`). The first time, the
# compiler version that matches this JAX is installed.

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
# ## Read the roofline
#
# The compiler's program has three lower bounds: computation, memory traffic within a chip, and communication between
# chips. A step takes at least as long as the largest. If it is `network`, choose another mesh. If it is `memory`, more
# sequences per device or less activation checkpointing help. `compute` is the work that you pay for.

# %% tags=["hide-input"]
kind, _ = costs.parse_topology(TOPOLOGY)
if reports:
  figure, axes = plt.subplots(1, 2, figsize=(11, 3.2))
  for number, part in enumerate(('compute', 'memory', 'network')):
    axes[0].bar([place + number / 4 for place in range(len(reports))],
                [1000 * report.lower_bounds[part] for report in reports.values()], width=1 / 4, label=part)
  axes[0].set(title='A step takes at least (ms)', xticks=[place + 0.25 for place in range(len(reports))],
              xticklabels=[*reports])
  axes[0].legend()
  axes[1].bar([*reports], [report.hbm_bytes / 2**30 for report in reports.values()], color='#93c47d')
  axes[1].axhline(pods.CHIPS[kind].hbm_gib, color='#e06666', linestyle=':')
  axes[1].set(title='GiB a chip; dotted: what it has')
  plt.show()
  best = min(reports, key=lambda title: reports[title].lower_bound)
  step = reports[best].lower_bound
  print(f'{best}: {step * 1000:.1f} ms a step at the least, {step * 900_000 / 3600:.1f} hours for 900,000 steps')
else:
  best = 'data=16'
  print('without the compiler nothing is known of memory and network: pip install "jax[tpu]"')

# %% [markdown]
# `python -m plm_jax train NAME --mode=compile --topology=v5e:4x4 --search` compiles all sensible meshes and prints the best.
#
# ## Rehearse the launch
#
# `scripts/tpu.sh resume` creates the pod, installs the code, starts the run, restarts it after a preemption, and deletes
# the pod at the end. `--dry-run` prints every command without executing it. The script is in a checkout of the project; a
# dry run needs no cloud account.

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
# ## The command for a real run
#
# Type this command without `--dry-run` when you have a pod to rent.

# %%
line = ' '.join(['scripts/tpu.sh', *(word for word in command if word != '--dry-run')])
pathlib.Path('runs').mkdir(exist_ok=True)
pathlib.Path('runs/launch.sh').write_text(f'#!/usr/bin/env bash\n{line}\n')
print(line)
