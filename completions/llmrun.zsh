#compdef llmrun
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
