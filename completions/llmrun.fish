# Completion of llmrun for fish. Generated; see strata_cli/completion_scripts.py.
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
