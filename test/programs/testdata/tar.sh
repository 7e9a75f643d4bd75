# needs: tar gzip
mkdir -p tree/deep/deeper
for i in $(seq 300); do echo "$i" >"tree/deep/f$i"; done
chmod 4711 tree/deep/f1 2>/dev/null || chmod 711 tree/deep/f1
chmod 711 tree/deep/f1
chmod 400 tree/deep/f2
ln tree/deep/f3 tree/hard
ln -s deep/f4 tree/soft
ln -s /none/such tree/dangling
mkfifo tree/fifo
truncate -s 1M tree/sparse
chmod 555 tree/deep/deeper
find tree -exec touch -h -d 2023-04-05T06:07:08Z {} +
tar -c --sort=name --numeric-owner -f tree.tar tree
mkdir x p z
tar -xf tree.tar -C x
tar -xpf tree.tar -C p --same-owner
tar -czf tree.tgz --sort=name -C tree .
tar -xzf tree.tgz -C z
tar -df tree.tar
tar -tvf tree.tar | wc -l
(tar -xf tree.tar -C x --keep-old-files 2>&1 || true) | sort | tail -2
tar -xf tree.tar -C x --recursive-unlink --unlink-first
tar -rf tree.tar text 2>&1 || echo "status $?"
tar --delete -f tree.tar tree/sparse
tar -xOf tree.tar tree/deep/f9
chmod -R u+w tree x p z
