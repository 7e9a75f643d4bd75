# needs: ln readlink realpath
mkdir -p v1 v2
ln -sfn v1 current
ln -sfn v2 current
readlink current
readlink -f current | sed 's|.*/||'
realpath --relative-to=. current
readlink -f current/none/.. 2>&1 || echo "status $?"
ln -s loop loop
readlink -f loop || echo "status $?"
cat loop 2>&1 || echo "status $?"
: >file
ln file hard
ln -f file hard
ln -sr v1/x v2/relative
ln -T file none/such 2>&1 || echo "status $?"
ln v1 directory 2>&1 || echo "status $?"
ln -P current link-of-link
ln -s "$(printf 'x%.0s' $(seq 300))" long
for i in $(seq 45); do ln -s "chain$((i + 1))" "chain$i"; done
: >chain46
cat chain10 && cat chain1 2>&1 || echo "status $?"
