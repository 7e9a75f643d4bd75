# needs: cp
mkdir -p from/a/b
for i in $(seq 50); do echo "$i" >"from/a/f$i"; done
ln -s f1 from/a/link
ln from/a/f2 from/a/b/hard
mkfifo from/fifo
chmod 640 from/a/f3
chmod 700 from/a/b
truncate -s 200K from/sparse
find from -exec touch -h -d 2023-04-05T06:07:08Z {} +
cp -a from archive
cp -r from/a plain
cp -p from/a/f3 kept
cp -l from/a/f4 linked
cp -s "$PWD/from/a/f5" pointed
cp --reflink=auto --sparse=always from/sparse sparse
cp -b from/a/f6 kept
cp -u from/a/f7 kept
cp -n from/a/f8 kept
cp -f from/a/f9 kept
cp -d from/a/link copied-link
cp -rL from/a followed
cp --parents from/a/b/hard archive
cp --preserve=all from/a/f10 all
cp --remove-destination from/a/f11 linked
cp from/none . 2>&1 || echo "status $?"
cp from . 2>&1 || echo "status $?"
(cp kept kept 2>&1 || true) | sed 's/.*are/are/'
cp /dev/null empty
cp /etc/hostname hostname && rm hostname
