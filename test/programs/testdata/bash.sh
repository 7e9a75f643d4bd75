# needs: bash
cat <<<'a here-string'
cat <<END
a here-document of $((1 + 1)) lines
END
diff <(seq 3) <(seq 4) || echo "status $?"
seq 5 | tee >(wc -l >counted) >/dev/null
while [ ! -s counted ]; do sleep 0.01; done
cat counted
mkfifo pipe
cat <pipe >through & echo through a pipe >pipe; wait
cat through
coproc { while read -r line; do echo "got $line"; done; }
echo asked >&"${COPROC[1]}"
read -r answer <&"${COPROC[0]}"
echo "$answer"
exec 5<>both && echo five >&5 && exec 5>&-
exec 6>>appended; echo 1 >&6; echo 2 >&6; exec 6>&-
set -C; echo no >both 2>/dev/null || echo kept; echo yes >|both; set +C
mapfile -t lines < <(seq 3); echo "${#lines[@]}"
trap 'echo trapped' USR1; kill -USR1 $$
(trap 'echo at exit >exit' EXIT)
echo both 2>&1 >/dev/null | cat
echo nothing >/dev/null 2>/dev/stderr
echo error >/dev/stderr
echo out >/dev/stdout
cat /dev/stdin <<<'standard input'
cat /dev/fd/3 3<<<'descriptor'
printf '%s\n' {a..c}{1..2} | sort -r | xargs
cd -P . && pushd / >/dev/null && popd >/dev/null
echo a{1,2} > "with space" && cat with*
shopt -s globstar nullglob; mkdir -p g/h && : >g/h/i.x && echo **/*.x none*.y
[[ -w . && -r both && ! -x both ]] && echo tests
read -r -t 0.05 <> <(exec sleep 5 2>/dev/null) || echo "status $?"
. /dev/stdin <<<'sourced=1'; echo "$sourced"
set +o pipefail; false | true; echo "${PIPESTATUS[*]}"; set -o pipefail
(exit 300) || echo "status $?"
none-such 2>/dev/null || echo "status $?"
./both 2>/dev/null || echo "status $?"
