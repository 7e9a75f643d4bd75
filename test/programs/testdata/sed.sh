# needs: sed
seq 200 >text
chmod 640 text
sed -i 's/1/one/g' text
sed -i.bak -e '/2/d' text
mkdir d && seq 5 >d/file && ln -s d/file link
sed -i --follow-symlinks 's/3/three/' link
sed -n 'w written' text
sed -i 's/x/y/' none 2>&1 || echo "status $?"
wc -l text text.bak written d/file
