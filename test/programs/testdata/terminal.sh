# needs: script
script -qec 'test -t 0 && test -t 1 && echo a terminal; stty size; stty -echo; echo its own >/dev/tty' typescript </dev/null
script -qec 'exit 4' /dev/null </dev/null || echo "status $?"
echo 'echo typed; exit' | script -qec 'sh' log >/dev/null
grep -c typed log
script -qec 'bash --norc -c "sleep 0.1 & wait; jobs; echo jobs"' /dev/null </dev/null
