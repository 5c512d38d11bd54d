# Completion of llmrun for bash. Generated; see strata_cli/completion_scripts.py.
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
