"""What each shell reads to complete what is typed after `tu`."""

from remote_resident.cli.answer import Answer

# what is asked for stands after --, so that a --json among it is none of ours
SCRIPTS = {
    "bash": """\
_tu() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" --complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _tu tu
""",
    "zsh": """\
#compdef tu
_tu() {
    local -a found
    found=("${(@f)$($words[1] --complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n $found ]]; then compadd -a found; else _files; fi
}
if [[ $funcstack[1] == _tu ]]; then _tu; else compdef _tu tu; fi
""",
    "fish": """\
function __tu_complete
    set -l words (commandline -opc)
    $words[1] --complete -- $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c tu -a '(__tu_complete)'
""",
}


def script(shell: str) -> Answer:
    """Give what a shell reads to complete what is typed after `tu`."""
    text = SCRIPTS[shell]
    return Answer(document={"completion": text}, text=text.rstrip())
