"""Accelerators of a machine, and the processes that use them, according to the operating system.

JAX reports neither: where it cannot use a TPU it silently computes on the CPU, a thousand times
slower.
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
from plm_jax.errors import UserError

# Vendor and devices on the PCI bus, as in jax._src.hardware_utils (jax 0.10.2). Google's network
# cards and disks have other numbers.
GOOGLE_VENDOR = '0x1ae0'
TPU_DEVICE_IDS = ('0x0027', '0x0056', '0x005e', '0x0062', '0x0063', '0x006f', '0x0076')
# Set on a TPU VM or in a GKE container with a TPU:
TPU_VARIABLES = ('TPU_ACCELERATOR_TYPE', 'TPU_WORKER_HOSTNAMES', 'TPU_WORKER_ID')


class AcceleratorError(UserError):
  """An accelerator that exists and cannot be used."""


@dataclasses.dataclass(frozen=True)
class Machine:
  """Sources of information about this machine."""

  root: pathlib.Path = pathlib.Path('/')
  """Folder of dev, proc and sys."""
  environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)
  """Environment variables of this process."""
  libtpu: bool = dataclasses.field(
      default_factory=lambda: importlib.util.find_spec('libtpu') is not None)
  """Whether the library that JAX needs for a TPU is installed."""
  free_bytes: Callable[[epath.PathLike], int | None] = storage.free_bytes
  """Returns the free bytes on the disk of a folder; None for a bucket."""


class DeviceHolder(NamedTuple):
  """A process that has a device open."""

  process: int
  command: str
  device: str


def tpu_device_files(machine: Machine) -> list[str]:
  """List the device files of TPU chips: /dev/accel0 up to v4, /dev/vfio/0 from v5e on.

  Other devices that are passed to a program have files in /dev/vfio, too: those are left out.
  """
  accel = [path.name for path in (machine.root / 'dev').glob('accel*')
           if re.fullmatch(r'accel\d+', path.name)]
  vfio = [f'vfio/{path.name}'
          for path in (machine.root / 'dev/vfio').glob('*') if path.name.isdigit()]
  bus = machine.root / 'sys/bus/pci/devices'
  if vfio and bus.is_dir() and not any(is_tpu(device) for device in bus.iterdir()):
    vfio = []
  return [f'/dev/{name}' for name in sorted(accel + vfio)]


def is_tpu(device: pathlib.Path) -> bool:
  """Return whether a device on the PCI bus is a TPU chip."""
  try:
    vendor = (device / 'vendor').read_text().strip()
    number = (device / 'device').read_text().strip()
  except OSError:
    return False
  return vendor == GOOGLE_VENDOR and number in TPU_DEVICE_IDS


def describe_tpu(machine: Machine) -> str:
  """Describe the evidence of a TPU: device files, or an environment variable; '' if none."""
  if found := tpu_device_files(machine):
    return f'a TPU ({", ".join(found[:8])})'
  for name in TPU_VARIABLES:
    if machine.environ.get(name):
      return f'a TPU ({name}={machine.environ[name]})'
  return ''


def find_holders(machine: Machine) -> list[DeviceHolder]:
  """Find other processes that have a TPU chip open; those of other users only as root."""
  visible = machine.environ.get('TPU_VISIBLE_CHIPS') or machine.environ.get('TPU_VISIBLE_DEVICES')
  # Several processes may each use some of the chips.
  own = [number.strip() for number in (visible or '').split(',') if number.strip()]
  devices = {chip for chip in tpu_device_files(machine)
             if not own or re.findall(r'\d+', chip)[-1] in own}
  found: list[DeviceHolder] = []
  if not devices:
    return found
  for process in (machine.root / 'proc').glob('[0-9]*'):
    if process.name == str(os.getpid()):
      continue
    try:
      opened = devices & {os.readlink(link) for link in (process / 'fd').iterdir()}
      content = (process / 'cmdline').read_bytes()
    except OSError:  # another user's, or finished meanwhile
      continue
    if opened:
      command = content.replace(b'\0', b' ').decode(errors='replace').strip()
      found.append(DeviceHolder(int(process.name), command, min(opened)))
  return sorted(found)


def check_tpu_usable(machine: Machine) -> None:
  """Raise AcceleratorError for a TPU that this process cannot use, before JAX is initialized.

  Another process may use it, which is named, or libtpu is not installed. There is no error if
  JAX_PLATFORMS selects the CPU.
  """
  tpu = describe_tpu(machine)
  if not tpu or is_cpu_requested(machine):
    return
  if not machine.libtpu:
    raise AcceleratorError(
        f'there is {tpu}, and libtpu is not installed, so that JAX would compute on the CPU: pip '
        "install 'plm_jax[tpu]'; if that is meant: JAX_PLATFORMS=cpu")
  if holders := find_holders(machine):
    process, command, device = holders[0]
    others = f', and {len(holders) - 1} others hold chips' if holders[1:] else ''
    raise AcceleratorError(
        f"{device} is held by process {process} ({command[:120]}){others}: a TPU is one process's "
        f'at a time. Wait for it, or end it: kill {process}')


def check_platform(machine: Machine, platform: str) -> None:
  """Raise AcceleratorError if JAX computes on the CPU of a machine with a TPU.

  There is no error if JAX_PLATFORMS selects the CPU. platform: JAX's name of the backend.
  """
  tpu = describe_tpu(machine)
  if platform != 'cpu' or not tpu or is_cpu_requested(machine):
    return
  raise AcceleratorError(
      f'there is {tpu}, and JAX computes on the CPU: '
      '`python -c "import jax; jax.devices(\'tpu\')"` says why. '
      "Most often libtpu is not that of this jax (pip install 'plm_jax[tpu]') or another user's "
      'process holds the TPU (sudo lsof /dev/accel* /dev/vfio/*). If the CPU is meant: '
      'JAX_PLATFORMS=cpu')


def is_cpu_requested(machine: Machine) -> bool:
  """Return whether JAX_PLATFORMS selects the CPU."""
  return machine.environ.get('JAX_PLATFORMS', '').partition(',')[0] == 'cpu'


def start_jax() -> str:
  """Initialize JAX -> the name of its backend. Raises AcceleratorError where it finds none."""
  try:
    return jax.default_backend()
  except RuntimeError as error:
    reason = ' '.join(str(error).split())[:300]
    platforms = os.environ.get('JAX_PLATFORMS', '')
    raise AcceleratorError(f'JAX cannot start: {reason}. Is another process using the accelerator, '
                           f'or JAX_PLATFORMS={platforms} not installed?') from error
