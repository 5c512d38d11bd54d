"""Shell scripts that ask `llmrun __complete` for candidates. The files in completions/ are written from these texts."""

from __future__ import annotations

BASH = r"""# Completion of llmrun for bash. Generated; see strata_cli/completion_scripts.py.
# bash splits words at : and =, so the pieces are put together again here, and what readline already
# holds of the word is cut from the answers. COMP_WORDBREAKS is left as it is.
_llmrun() {
    local program=${1/#\~/$HOME} rest=$COMP_LINE blank piece trim='' line directives='' i last=-1 over
    local -a words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        piece=${COMP_WORDS[i]}
        blank=${rest%%[![:space:]]*}
        rest=${rest#"$blank"}
        if ((i > 0)) && [[ -z $blank ]]; then
            trim=${words[last]}
            if [[ $piece == [:=]* ]]; then trim+=$piece; fi
            words[last]+=$piece
        else
            words[++last]=$piece
            trim=''
        fi
        rest=${rest#"$piece"}
    done
    over=$((${#COMP_LINE} - ${#rest} - COMP_POINT))
    if ((over > 0)); then words[last]=${words[last]:0:${#words[last]}-over}; fi
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :*) directives=$line ;;
            *) COMPREPLY+=("${line#"$trim"}") ;;
        esac
    done < <("$program" __complete bash -- "${words[@]}" 2>/dev/null)
    case $directives in *files*) compopt -o default 2>/dev/null ;; esac
    case $directives in *dirs*) compopt -o dirnames 2>/dev/null ;; esac
    case $directives in *nospace*) compopt -o nospace 2>/dev/null ;; esac
}
complete -F _llmrun llmrun
"""

ZSH = r"""#compdef llmrun
# Completion of llmrun for zsh. Generated; see strata_cli/completion_scripts.py.
_llmrun() {
    local line directives=''
    local -a given values shown options
    given=("${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}")
    for line in "${(@f)$(${~given[1]} __complete zsh -- "${given[@]}" 2>/dev/null)}"; do
        case $line in
            '') ;;
            :*) directives=$line ;;
            *$'\t') values+=("${line%$'\t'}"); shown+=("${line%$'\t'}") ;;
            *) values+=("${line%%$'\t'*}"); shown+=("${line%%$'\t'*}  -- ${line#*$'\t'}") ;;
        esac
    done
    [[ $directives == *nospace* ]] && options=(-S '')
    (( $#values )) && compadd "${options[@]}" -l -d shown -a values
    [[ $directives == *(files|dirs)* && $PREFIX == --*=* ]] && compset -P '*='
    [[ $directives == *files* ]] && _files
    [[ $directives == *dirs* ]] && _files -/
    return 0
}
if [[ $funcstack[1] == _llmrun ]]; then _llmrun "$@"; else compdef _llmrun llmrun; fi
"""

FISH = r"""# Completion of llmrun for fish. Generated; see strata_cli/completion_scripts.py.
function __llmrun_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] __complete fish -- $words "$current" 2>/dev/null)
        switch $line
            case ':*files*'
                __llmrun_paths __fish_complete_path "$current"
            case ':*dirs*'
                __llmrun_paths __fish_complete_directories "$current"
            case ':*'
            case '*'
                echo $line
        end
    end
end
function __llmrun_paths --argument-names lister current
    set -l flag (string match -r -- '^--[^=]*=' $current)
    for path in ($lister (string replace -r -- '^--[^=]*=' '' $current))
        echo "$flag$path"
    end
end
complete -c llmrun -f -k -a '(__llmrun_complete)'
"""

POWERSHELL = r"""# Completion of llmrun for PowerShell. Generated; see strata_cli/completion_scripts.py.
Register-ArgumentCompleter -Native -CommandName llmrun -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = @($commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition } |
        ForEach-Object { if ($null -ne $_.Value) { [string]$_.Value } else { $_.Extent.Text } })
    $current = $wordToComplete.Trim('"', "'")
    $program = [string]$commandAst.CommandElements[0].Value
    # The plus keeps an empty word alive on its way to the program, which takes it off again.
    & $program __complete powershell '--' @words "+$current" 2>$null | Where-Object { $_ -and $_[0] -ne ':' } |
        ForEach-Object {
            $value, $text = $_ -split "`t", 2
            if (-not $text) { $text = $value }
            $quoted = if ($value -match '[\s''"`$;&|(){}]') { "'" + $value.Replace("'", "''") + "'" } else { $value }
            [System.Management.Automation.CompletionResult]::new($quoted, $value, 'ParameterValue', $text)
        }
}
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH, "powershell": POWERSHELL}
FILES = {"bash": "llmrun.bash", "zsh": "llmrun.zsh", "fish": "llmrun.fish", "powershell": "llmrun.ps1"}
