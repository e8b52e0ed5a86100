"""Print a script that completes commands, options, recipes and file names with the TAB key."""
from plm_jax.cli import catalog, help, signatures
from plm_jax.errors import ConfigError

SCRIPT = """\
# Tab completion of plm-jax for bash and, through bashcompinit, zsh.
_plm_jax() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands} --help --version"
  elif [ "${{word:0:1}}" = "-" ]; then
    case "$command" in
{cases}
    esac
  elif [ "$COMP_CWORD" -eq 2 ]; then
    case "$command" in
      train|doctor|show|inspect) words="{recipes}" ;;
      vectors) words="{vectors}" ;;
      completion) words="bash zsh" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o bashdefault -o default -F _plm_jax plm-jax
"""
ZSH_START = 'autoload -U +X bashcompinit && bashcompinit\n'


def completion_script(shell: str) -> str:
  """Return the script of a shell; raise ConfigError for another shell than bash or zsh."""
  if shell not in ('bash', 'zsh'):
    raise ConfigError(f'completion is for bash or zsh, got {shell or "nothing"}')
  cases = []
  for name in catalog.COMMANDS:
    options = [f'--{option}' for option in help.known_options([name])]
    if name == 'vectors':
      for inner in catalog.VECTORS:
        options += [f'--{option}' for option in help.known_options(['vectors', inner])]
    names = ' '.join(dict.fromkeys([*options, '--help']))
    cases.append(f'      {name}) words="{names}" ;;')
  script = SCRIPT.format(
      commands=' '.join(catalog.COMMANDS), cases='\n'.join(cases),
      recipes=' '.join(signatures.recipe_titles()), vectors=' '.join(catalog.VECTORS))
  return script if shell == 'bash' else ZSH_START + script
