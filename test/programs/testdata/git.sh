# needs: git
git config --global user.name someone
git config --global user.email someone@example.org
git config --global pack.threads 1
export GIT_AUTHOR_DATE='2024-01-02T03:04:05Z' GIT_COMMITTER_DATE='2024-01-02T03:04:05Z'
git init -q -b main repo
cd repo
for i in $(seq 60); do mkdir -p "d$((i % 7))" && echo "line $i" >"d$((i % 7))/f$i"; done
ln -s d1/f1 link
printf '#!/bin/sh\necho hook ran\n' >.git/hooks/pre-commit
chmod +x .git/hooks/pre-commit
git add .
git commit -qm one 2>&1
git checkout -qb side
for i in $(seq 20); do echo "side $i" >>"d$((i % 7))/f$i"; done
git mv d3/f3 moved
git rm -q d4/f32
git commit -qam two 2>&1
git checkout -q main
echo main >>d0/f35
git commit -qam three 2>&1
git merge -q --no-edit side 2>&1
echo more >>d2/f2
git stash -q
git stash pop -q
git commit -qam four 2>&1
git checkout -q side
git checkout -q main
git tag -a -m tagged v1
git worktree add -q ../other side
(cd ../other && echo other >new && git add new && git commit -qm other 2>&1)
git worktree list | sed "s|.*/||"
git worktree remove ../other
git rebase -q main side 2>&1
git checkout -q main
git gc -q --prune=now
git fsck --full --strict
git clone -q . ../copy
git clone -q --bare --no-hardlinks . ../bare.git
git -C ../copy log --format='%h %s' --graph
(cd ../copy && echo pushed >pushed && git add pushed && git commit -qm pushed 2>&1 && git push -q ../bare.git HEAD:pushed 2>&1)
git -C ../bare.git log --format='%h %s' -1 pushed
git archive --format=tar HEAD | tar t | wc -l
git clean -qdfx
git diff --stat v1~2 v1
git status --porcelain --branch
