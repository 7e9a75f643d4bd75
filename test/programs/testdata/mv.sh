# needs: mv
mkdir -p a/b c
echo 1 >a/one
echo 2 >a/two
mv a/one a/uno
mv -b a/uno a/two
mv a c
mv -n c/a/two c/a/none
mv -T c d
mv -f d/a/b .
mv d/none . 2>&1 || echo "status $?"
mv d d/a 2>&1 || echo "status $?"
mkdir -p full/x empty
mv -T full empty
mv -T empty b/ 2>&1 && ls b
echo across >"/tmp/across-$$" && mv "/tmp/across-$$" across
