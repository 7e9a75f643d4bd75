# needs: flock nohup timeout
: >lock
for i in 1 2 3 4; do flock lock sh -c 'n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) >count' & done
wait
cat count
flock -n lock flock -n lock true || echo "status $?"
flock -x 9 9>lock2 && echo held
nohup sh -c 'echo from nohup' 2>/dev/null
nohup sh -c 'echo to a file' >nohup.out 2>&1
timeout 0.2 sleep 60 || echo "status $?"
sh -c 'timeout -s KILL 0.2 sleep 60; exit $?' 2>/dev/null || echo "status $?"
timeout 60 true && echo in time
setsid -w sh -c 'echo a session; exit 3' || echo "status $?"
seq 40 | xargs -P4 -n1 sh -c ': >"x$0"'
ls x* | wc -l
nice -n 5 sh -c nice
env -i A=b /usr/bin/env
sleep 60 & kill $! && wait $! || echo "status $?"
sh -c '(kill -SEGV $(exec sh -c "echo \$PPID")); exit $?' 2>/dev/null || echo "status $?"
(ulimit -n 20 && exec 3<lock && echo limited)
(ulimit -f 1 && yes 2>/dev/null | head -c 100000 >limited) 2>/dev/null || echo "a limit"
stdbuf -oL echo buffered
