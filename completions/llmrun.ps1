# Completion of llmrun for PowerShell. Generated; see strata_cli/completion_scripts.py.
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
