"""The accelerators that are plugged into a machine, and the processes that hold them, as the system tells it.

JAX says neither: where it cannot have a TPU it computes on the CPU, a thousand times slower and without a word.
"""
from collections.abc import Callable, Mapping
import dataclasses
import importlib.util
import os
import pathlib
import re
from typing import NamedTuple

from etils import epath
import jax

from plm_jax import storage
from plm_jax.errors import Expected

# Vendor and devices on the PCI bus, as jax._src.hardware_utils lists them (jax 0.10.2); Google's network cards and
# disks have other numbers.
GOOGLE = '0x1ae0'
TPUS = ('0x0027', '0x0056', '0x005e', '0x0062', '0x0063', '0x006f', '0x0076')
# What says of itself, on a TPU VM or in a container of GKE, that there is a TPU.
VARIABLES = ('TPU_ACCELERATOR_TYPE', 'TPU_WORKER_HOSTNAMES', 'TPU_WORKER_ID')


class AcceleratorError(Expected):
  """An accelerator that is there and cannot be used."""


@dataclasses.dataclass(frozen=True)
class Machine:
  """Where the system tells about itself."""

  root: pathlib.Path = pathlib.Path('/')
  """of dev, proc and sys"""
  environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)
  """variables of this process"""
  libtpu: bool = dataclasses.field(default_factory=lambda: importlib.util.find_spec('libtpu') is not None)
  """whether JAX has what it needs for a TPU"""
  free: Callable[[epath.PathLike], int | None] = storage.free_bytes
  """counts the bytes that are free on the disk of a folder; None: of a bucket"""


class Holder(NamedTuple):
  """A process that has a device open."""

  process: int
  command: str
  device: str


def chips(machine: Machine) -> list[str]:
  """Lists the device files of TPU chips: /dev/accel0 up to v4, /dev/vfio/0 from v5e on, where no other device that is
  handed to a program has one."""
  accel = [path.name for path in (machine.root / 'dev').glob('accel*') if re.fullmatch(r'accel\d+', path.name)]
  vfio = [f'vfio/{path.name}' for path in (machine.root / 'dev/vfio').glob('*') if path.name.isdigit()]
  bus = machine.root / 'sys/bus/pci/devices'
  if vfio and bus.is_dir() and not any(is_tpu(device) for device in bus.iterdir()):
    vfio = []
  return [f'/dev/{name}' for name in sorted(accel + vfio)]


def is_tpu(device: pathlib.Path) -> bool:
  """Tells whether a device on the bus is a TPU chip."""
  try:
    return ((device / 'vendor').read_text().strip(), (device / 'device').read_text().strip()) in {
        (GOOGLE, number) for number in TPUS}
  except OSError:
    return False


def tpu(machine: Machine) -> str:
  """Says what tells that there is a TPU: its device files, else a variable that its VM or container sets; '' where
  nothing does."""
  if found := chips(machine):
    return f'a TPU ({", ".join(found[:8])})'
  told = [f'{name}={machine.environ[name]}' for name in VARIABLES if machine.environ.get(name)]
  return f'a TPU ({told[0]})' if told else ''


def holders(machine: Machine) -> list[Holder]:
  """Finds the other processes that have a TPU chip open: of other users none, unless this is root."""
  visible = machine.environ.get('TPU_VISIBLE_CHIPS') or machine.environ.get('TPU_VISIBLE_DEVICES') or ''
  own = [number.strip() for number in visible.split(',') if number.strip()]  # several processes, each with its chips
  devices = {chip for chip in chips(machine) if not own or re.findall(r'\d+', chip)[-1] in own}
  found: list[Holder] = []
  if not devices:
    return found
  for process in (machine.root / 'proc').glob('[0-9]*'):
    if process.name == str(os.getpid()):
      continue
    try:
      opened = devices & {os.readlink(link) for link in (process / 'fd').iterdir()}
      command = (process / 'cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace').strip()
    except OSError:  # another user's, or ended meanwhile
      continue
    if opened:
      found.append(Holder(int(process.name), command, min(opened)))
  return sorted(found)


def check_usable(machine: Machine) -> None:
  """Raises AcceleratorError, before JAX looks for it, for a TPU that this process cannot have: another holds it, which
  is named, or libtpu is not installed. Not where JAX_PLATFORMS says that JAX is to compute on the CPU."""
  there = tpu(machine)
  if not there or on_purpose(machine):
    return
  if not machine.libtpu:
    raise AcceleratorError(f'there is {there}, and libtpu is not installed, so that JAX would compute on the CPU: pip '
                           "install 'plm_jax[tpu]'; if that is meant: JAX_PLATFORMS=cpu")
  if held := holders(machine):
    process, command, device = held[0]
    others = f', and {len(held) - 1} others hold chips' if held[1:] else ''
    raise AcceleratorError(
        f'{device} is held by process {process} ({command[:120]}){others}: a TPU is one process\'s at a time. Wait for '
        f'it, or end it: kill {process}')


def check_platform(machine: Machine, platform: str) -> None:
  """Raises AcceleratorError where JAX computes on the CPU beside a TPU, unless JAX_PLATFORMS says that it is to.
  platform: as JAX names it."""
  there = tpu(machine)
  if platform != 'cpu' or not there or on_purpose(machine):
    return
  raise AcceleratorError(
      f'there is {there}, and JAX computes on the CPU: `python -c "import jax; jax.devices(\'tpu\')"` says why. Most '
      "often libtpu is not that of this jax (pip install 'plm_jax[tpu]') or another user's process holds the TPU "
      '(sudo lsof /dev/accel* /dev/vfio/*). If the CPU is meant: JAX_PLATFORMS=cpu')


def on_purpose(machine: Machine) -> bool:
  """Tells whether the CPU was asked for."""
  return machine.environ.get('JAX_PLATFORMS', '').partition(',')[0] == 'cpu'


def platform() -> str:
  """Starts JAX -> the name of what it computes on. Raises AcceleratorError where it finds nothing."""
  try:
    return jax.default_backend()
  except RuntimeError as error:
    said = ' '.join(str(error).split())[:300]
    raise AcceleratorError(f'JAX cannot start: {said}. Is another process using the accelerator, or JAX_PLATFORMS='
                           f'{os.environ.get("JAX_PLATFORMS", "")} not installed?') from error
