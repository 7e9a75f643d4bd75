# needs: patch diff
mkdir -p a/sub b/sub
seq 100 >a/file
sed 's/50/fifty/' a/file >b/file
seq 10 >b/sub/new
seq 3 >a/gone
(diff -Nru --label a/file --label b/file a/file b/file; diff -Nru --label /dev/null --label b/sub/new /dev/null b/sub/new; diff -Nru --label a/gone --label /dev/null a/gone /dev/null) >change || true
mkdir work && cp -r a/. work && cd work
patch -p1 -b <../change
patch -p1 -R <../change
patch -p1 --dry-run <../change
sed -i 1,90d file
patch -p1 -N <../change || echo "status $?"
